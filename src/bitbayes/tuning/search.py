"""Searching candidates on grids that are even in the logarithm."""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from bitbayes.errors import DataError, EdgeWarning

# How far apart the candidates of a first, coarse search may be, in nats of the variance. Each variance of a
# logit is a sum of logistic functions of log σ₀², a nat and more wide. So the cost can hardly
# have another minimum between two candidates that are this far apart.
COARSE_NATS = 1.5


def search(grid: list[float], costs: Callable[[list[float]], Tensor], *, equal: float = 0.0) -> float:
    """The candidate with the least cost; on a fine grid only about a third are evaluated.

    Args:
        grid: the candidates, in ascending order.
        costs: returns the costs (c,) of some of them. It is called with a coarse part of the grid, and then
            with the neighbours of its best.
        equal: costs that differ from the least by at most this are equal, and of the candidates with equal
            costs the one in the middle is taken.
    """
    step = stride(grid, COARSE_NATS)
    coarse = sorted({*range(0, len(grid), step), len(grid) - 1})
    known = torch.full((len(grid),), torch.inf, dtype=torch.float64)
    known[coarse] = costs([grid[i] for i in coarse])
    centre = least(known)
    around = range(max(0, centre - step + 1), min(len(grid), centre + step))
    fine = [i for i in around if i not in coarse]
    if fine:
        known[fine] = costs([grid[i] for i in fine])
    if not equal:
        return grid[least(known)]
    best = float(known[least(known)])
    within = [value for value, cost in zip(grid, known.tolist(), strict=True) if cost <= best + equal]
    middle = math.sqrt(within[0] * within[-1])
    return min(within, key=lambda value: abs(math.log(value / middle)))


def stride(grid: list[float], nats: float) -> int:
    """The number of steps of an even grid that comes closest to `nats`, at least one.

    >>> stride([1.0, math.e, math.e**2, math.e**3], 2.2)
    2
    """
    return max(1, round(nats / math.log(grid[1] / grid[0])))


def largest_within(grid: list[float], costs: Tensor, limit: float) -> float:
    """The largest value whose cost is at most `limit`, with costs that are linear between candidates.

    Args:
        grid: the candidates, in ascending order; the first is returned if all cost more.
        costs: (c,), of the candidates.
        limit: the largest cost.

    >>> largest_within([1.0, 10.0, 100.0], torch.tensor([0.25, 0.5, 0.75]), 0.625)
    55.0
    """
    within = [i for i, cost in enumerate(costs.tolist()) if cost <= limit]
    last = max(within, default=0)
    if not within or last == len(grid) - 1:
        return grid[last]
    here, beyond = costs[last : last + 2].tolist()
    share = (limit - here) / (beyond - here) if math.isfinite(beyond) else 0.0
    return grid[last] + share * (grid[last + 1] - grid[last])


def least(costs: Tensor) -> int:
    """The index of the least cost; raises if none is finite."""
    if not bool(costs.isfinite().any()):
        raise DataError(
            "no candidate for the prior variance has a finite cost: are the labels right, and are there any "
            "outliers?"
        )
    return int(costs.nan_to_num(torch.inf, torch.inf, torch.inf).argmin())


def warn_at_the_edge(grid: list[float], chosen: float | dict[str, float], stacklevel: int) -> None:
    """Warn if a chosen prior variance is the first or the last of those tried."""
    for layer, value in chosen.items() if isinstance(chosen, dict) else [("", chosen)]:
        if value in (grid[0], grid[-1]):
            smallest, of = value == grid[0], f" of layer {layer!r}" if layer else ""
            meaning = "predictions are almost those of the plain network now"
            if not smallest:
                meaning = "predictions are as uncertain as any prior makes them now"
            side = "smallest" if smallest else "largest"
            warnings.warn(
                f"the best prior variance{of}, {value:.3g}, is the {side} of those tried: {meaning}. Set "
                "`prior_variance`, or choose another objective, if that does not suit",
                EdgeWarning,
                stacklevel=stacklevel + 1,
            )
