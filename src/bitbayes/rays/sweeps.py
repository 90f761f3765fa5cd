"""From which δ on the confidence along a ray δ·x stays at or below a number c.

The ray is swept from infinity towards 0. A cell of it is passed if a bound on the confidence there is at most
c. After each such cell the next one is twice as wide. A cell that is not passed is halved, until δ hardly
changes on it. There the sweep ends, and what it has passed is certain. Beyond alpha the bounds are those of
the certificates, on cells of u. With a residual the sweep goes on below alpha, on cells of δ (`cells.py`).
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from bitbayes.errors import ModelError
from bitbayes.likelihoods import Likelihood
from bitbayes.rays.cells import near_bound
from bitbayes.rays.certificates import CellBound, cell_bound, rounded_up
from bitbayes.rays.ray_gaussian import RayGaussian
from bitbayes.residual import Residual

# The sweep ends at a cell that is not passed and on which δ changes by less than this share,
RESOLUTION = 1e-3
# or after so many cells of a ray, passed or not, beyond alpha, and as many below it.
MAX_CELLS = 300
# Below alpha δ = alpha·e^(−place). At this place it is 0 in float64.
LAST_PLACE = 1500.0


@torch.no_grad()
def beyond(
    rays: Iterable[RayGaussian],
    x: Tensor,
    residual: Residual | None,
    likelihood: Likelihood,
    method: str,
    at_most: float,
) -> Tensor:
    """Return a δ (n,) from which on the confidence is at most `at_most`; infinite where none was found.

    With several labels for each input, and for values, it is (n, k), one for each of them.

    Args:
        rays: the Gaussians along the rays δ·x.
        x: one ray for each row.
        residual: the residual that the Gaussians have, if they have one.
        likelihood: of the labels.
        method: the predictive.
        at_most: a confidence.
    """
    parts, start = list[Tensor](), 0
    for ray in rays:
        rows = slice(start, start + len(ray.alpha))
        start = rows.stop
        request = x[rows], residual, likelihood, method, at_most
        if likelihood.one_label:
            parts.append(_beyond(ray, *request))
        else:
            parts.append(torch.stack([_beyond(each, *request) for each in ray.outputs()], dim=1))
    return torch.cat(parts)


def _beyond(
    ray: RayGaussian,
    x: Tensor,
    residual: Residual | None,
    likelihood: Likelihood,
    method: str,
    at_most: float,
) -> Tensor:
    """Return `beyond` (n,) of one decision, or of one value."""
    if likelihood.classifies and at_most >= 1:
        return torch.zeros_like(ray.alpha)
    found = _beyond_alpha(ray, cell_bound(ray, likelihood, method), at_most)
    if residual is not None:
        try:
            bound = near_bound(ray, x, residual, likelihood, method)
            found = _below_alpha(ray, bound, found, at_most)
        except ModelError:  # the network has an operation with a rule at infinity, but none on cells
            pass
    return found


def _beyond_alpha(ray: RayGaussian, bound: CellBound, at_most: float) -> Tensor:
    """Return the δ (n,) at the end of the sweep from infinity to alpha."""
    rows = torch.arange(len(ray.alpha), device=ray.alpha.device)
    u = _sweep(bound, ray.delta, rows, 1.0, at_most)
    return torch.where(u > 0, torch.where(u < 1, ray.delta(rows, u), ray.alpha), torch.inf)


def _below_alpha(ray: RayGaussian, bound: CellBound, found: Tensor, at_most: float) -> Tensor:
    """Return the δ (n,) that were `found` beyond alpha, and smaller ones for the rays that reached alpha."""
    rows = ((found == ray.alpha) & (ray.alpha > 0)).nonzero()[:, 0]

    def delta(row: Tensor, place: Tensor) -> Tensor:
        return ray.alpha[row] * (-place).exp()

    def bound_by_place(row: Tensor, start: Tensor, end: Tensor) -> Tensor:
        return bound(row, delta(row, end), delta(row, start))

    place = _sweep(bound_by_place, delta, rows, LAST_PLACE, at_most)
    return found.index_copy(0, rows, delta(rows, place))


def _sweep(
    bound: CellBound,
    delta: Callable[[Tensor, Tensor], Tensor],
    rows: Tensor,
    last: float,
    at_most: float,
) -> Tensor:
    """Return the places (r,) up to which the rays with the numbers `rows` (r,) were passed, from 0 to `last`.

    delta(row, place) is the δ of a place, which falls with it.
    """
    place = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    step, active = torch.ones_like(place), torch.arange(len(rows), device=rows.device)
    for _ in range(MAX_CELLS):
        if not len(active):
            break
        row, start = rows[active], place[active]
        end = (start + step[active]).clamp_max(last)
        passed = rounded_up(bound(row, start, end)) <= at_most  # False for NaN
        place[active] = torch.where(passed, end, start)
        step[active] *= torch.where(passed, 2.0, 0.5)
        narrow = delta(row, start) <= delta(row, end) * (1 + RESOLUTION)
        active = active[torch.where(passed, end < last, ~narrow)]
    return place
