"""Choosing the prior variance: the cost of each candidate, summed over one pass, and the best of them."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, DataError, EdgeWarning
from bitbayes.likelihood import Likelihood
from bitbayes.logits import LogitGaussian
from bitbayes.model import Inputs

OBJECTIVES = ("ood", "nll", "evidence")
PENALTIES = ("entropy", "uniform")
# Wide enough that an optimum on the edge means that the data do not ask for one.
SMALLEST, LARGEST = 1e-6, 1e10
# Of the candidates, how many are passed over at first.
STRIDE = 4
# Candidates whose predictions are made in one go: what a small operation costs is mostly its start.
AT_ONCE = 5
# How much of the negative log-likelihood on validation data the residual may cost.
HALF_A_PERCENT = 0.005

# A prior variance, or one with the residual's variance.
Candidate = TypeVar("Candidate")
# Of some points: the logits as a function of the candidate, and the labels if they have any.
Points = tuple[Callable[[Candidate], LogitGaussian], Tensor | None]


def candidates(count: int = 100, smallest: float = SMALLEST, largest: float = LARGEST) -> list[float]:
    """Prior variances, evenly spaced in the logarithm: six a decade.

    >>> [f"{value:.0e}" for value in candidates(3)]
    ['1e-06', '1e+02', '1e+10']
    """
    low, high = math.log(smallest), math.log(largest)
    return [math.exp(low + (high - low) * i / (count - 1)) for i in range(count)]


def positive(value: object, name: str = "prior_variance", *, zero: bool = False) -> float:
    """The value as a float; raises unless it is a positive, finite number, or 0 where that may be."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
        raise ArgumentError(f"{name}={value!r}: expected a positive, finite number")
    return number


def each_layers(values: Mapping[str, float], names: list[str]) -> dict[str, float]:
    """The prior variance of each of the named layers; raises if they are not these, or not positive."""
    missing, unknown = [n for n in names if n not in values], [n for n in values if n not in names]
    if missing or unknown:
        wrong = [f"names {unknown}, which are no layers"] if unknown else []
        wrong += [f"lacks {missing}"] if missing else []
        raise ArgumentError(f"prior_variance {' and '.join(wrong)}: give each of {names}")
    return {name: positive(values[name]) for name in names}


def scalar(value: object) -> Tensor:
    """One positive number as a scalar in float64, with its graph if it has one."""
    if not isinstance(value, Tensor):
        return torch.tensor(positive(value), dtype=torch.float64)
    if value.numel() != 1 or not bool((value > 0) & value.isfinite()):
        raise ArgumentError(f"prior_variance={value!r}: expected one positive number")
    return value.double().reshape(())


def mean_costs(
    points: Iterable[Points[Candidate]],
    grid: list[Candidate],
    predict: Callable[[list[LogitGaussian]], Tensor],
    cost: Callable[[Tensor, Tensor | None], Tensor],
) -> Tensor:
    """For each candidate the mean of `cost(drop_in_logits, labels)` (n,) over all points, (c,) in float64."""
    totals, count = torch.zeros(len(grid), dtype=torch.float64), 0
    for gaussian_at, labels in points:
        sums = []
        for start in range(0, len(grid), AT_ONCE):
            gaussians = [gaussian_at(value) for value in grid[start : start + AT_ONCE]]
            some = len(gaussians)
            costs = cost(predict(gaussians), None if labels is None else labels.repeat(some))
            sums.append(costs.reshape(some, -1).sum(1))
        totals += torch.cat(sums).cpu().double()
        count += len(gaussians[0].mean)
    return totals / count


def negative_log_likelihood(likelihood: Likelihood) -> Callable[[Tensor, Tensor | None], Tensor]:
    """−log p(y), for points with labels."""

    def cost(logits: Tensor, labels: Tensor | None) -> Tensor:
        assert labels is not None
        return likelihood.losses(logits, labels)

    return cost


def overconfidence(likelihood: Likelihood, penalty: str) -> Callable[[Tensor, Tensor | None], Tensor]:
    """For outliers: minus the entropy, or ("uniform") the cross-entropy to the uniform vector."""

    def cost(logits: Tensor, _: Tensor | None) -> Tensor:
        log_p = likelihood.log_probabilities(logits)
        return -log_p.mean(1) if penalty == "uniform" else (log_p.exp() * log_p).sum(1)

    return cost


def search(grid: list[float], costs: Callable[[list[float]], Tensor]) -> float:
    """The best candidate by a third of their costs: of every fourth, then of those next to the best of these.

    Each variance is a sum of logistic functions of log σ₀², a nat and more wide, so that the cost has little
    room to turn between two candidates that are one and a half nats apart.
    """
    coarse = sorted({*range(0, len(grid), STRIDE), len(grid) - 1})
    known = torch.full((len(grid),), torch.inf, dtype=torch.float64)
    known[coarse] = costs([grid[i] for i in coarse])
    centre = int(known.nan_to_num(torch.inf, torch.inf, torch.inf).argmin())
    around = range(max(0, centre - STRIDE + 1), min(len(grid), centre + STRIDE))
    fine = [i for i in around if i not in coarse]
    known[fine] = costs([grid[i] for i in fine])
    return best(grid, known)


def best(grid: list[float], costs: Tensor) -> float:
    """The candidate of least cost."""
    return grid[_least(costs)]


def warn_at_the_edge(grid: list[float], chosen: float | dict[str, float], stacklevel: int) -> None:
    """Warn where a chosen prior variance is the first or the last of those tried."""
    for layer, value in chosen.items() if isinstance(chosen, dict) else [("", chosen)]:
        if value in (grid[0], grid[-1]):
            side, of = "smallest" if value == grid[0] else "largest", f" of layer {layer!r}" if layer else ""
            warnings.warn(
                f"the best prior variance{of}, {value:.3g}, is the {side} of those tried ({grid[0]:.3g} to "
                f"{grid[-1]:.3g}): the optimum may lie beyond, or the data ask for none; set "
                "`prior_variance` yourself if this one does not suit",
                EdgeWarning,
                stacklevel=stacklevel + 1,
            )


def largest_within(grid: list[float], costs: Tensor, limit: float) -> float:
    """The largest candidate whose cost is at most `limit`; the first if there is none.

    >>> largest_within([1.0, 10.0, 100.0], torch.tensor([0.2, 0.3, 0.4]), 0.35)
    10.0
    """
    within = [value for value, cost in zip(grid, costs.tolist(), strict=True) if cost <= limit]
    return max(within, default=grid[0])


def best_pair(
    costs: Callable[[list[tuple[float, float]]], Tensor], priors: list[float], residuals: list[float]
) -> tuple[float, float]:
    """Prior variance and residual variance of least cost: one pair a decade, then each on its own fine grid.

    `costs(pairs)` (c,).
    """
    coarse = [(prior, residual) for prior in priors[::7] for residual in residuals[::7]]
    _, residual = coarse[_least(costs(coarse))]
    prior = best(priors, costs([(each, residual) for each in priors]))
    return prior, residuals[_least(costs([(prior, each) for each in residuals]))]


def _least(costs: Tensor) -> int:
    if not bool(costs.isfinite().any()):
        raise DataError(
            "no candidate for the prior variance has a finite cost: are the labels right, and are there any "
            "outliers?"
        )
    return int(costs.nan_to_num(torch.inf, torch.inf, torch.inf).argmin())


class UniformNoise:
    """Uniform noise like the inputs it was shown: as many, over the range of all their values, seeded."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.shapes: list[torch.Size] = []
        self.low, self.high = math.inf, -math.inf

    def see(self, inputs: Inputs) -> None:
        """Learn of one batch; raise at the first for which noise means nothing."""
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            kind = str(inputs.dtype) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ArgumentError(
                f"uniform noise means nothing for inputs of type {kind}: pass `outliers`, a loader of inputs "
                "unlike the training data, or choose objective='nll'"
            )
        self.like = inputs
        self.shapes.append(inputs.shape)
        self.low, self.high = min(self.low, float(inputs.min())), max(self.high, float(inputs.max()))

    def __iter__(self) -> Iterator[Tensor]:
        # Drawn on the CPU, so that every device sees the same noise.
        generator = torch.Generator().manual_seed(self.seed)
        for shape in self.shapes:
            noise = self.low + (self.high - self.low) * torch.rand(shape, generator=generator)
            yield noise.to(self.like)

    def __len__(self) -> int:
        return len(self.shapes)
