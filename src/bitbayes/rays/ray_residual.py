"""The residual along rays: what it adds to the variance of every logit, on cells of a ray."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.logits import LogitGaussian
from bitbayes.model import model_device
from bitbayes.precision import to_float64
from bitbayes.rays.ray_gaussian import INFINITE_SCALE, RayGaussian
from bitbayes.rays.ray_tensor import RayTensor
from bitbayes.residual import Residual, as_rows, levels
from bitbayes.settings import Settings

# The largest variance that is added. It is finite, and every mean is negligible beside it.
MAX_VARIANCE = 1e250


class RayResidual(NamedTuple):
    """σ²·max(0, k(δ·x) − threshold) for n rays: x̂ = slope·δ + offset (n, D), k = Σ weights |x̂|³/3."""

    slope: Tensor
    offset: Tensor
    weights: Tensor
    settings: Settings

    @property
    def moves(self) -> Tensor:
        """Whether δ·x moves with δ, (n,): it does except at x = 0."""
        return self.slope.abs().amax(1) > 0

    def at_zero(self, gaussian: LogitGaussian) -> LogitGaussian:
        """Return the Gaussian with the residual at δ = 0, the only point of a ray that does not move."""
        root = self._cubes(self.offset).sqrt()
        return gaussian.plus_independent(self.settings.residual_deviations(root))

    def range(self, ray: RayGaussian, row: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds (c,) on the added variance, in units of scale², for low ≤ u ≤ high.

        `row` (c,) are the numbers of the rays. k is convex in δ, so it is largest at an end of the cell, and
        at least its value at the smallest |x̂| of each dimension. Near infinity 1/scale² goes to 0, and so
        does this lower bound. There the smallest |x̂|/δ is used, with (δ/scale)² in place of 1/scale².
        """
        threshold = self.settings.residual_threshold
        nearest, furthest = ray.delta(row, high), ray.delta(row, low)  # (c,)
        sizes = [_inverse_scale(ray, row, u) for u in (high, low)]
        smallest, largest = torch.minimum(*sizes), torch.maximum(*sizes)
        slope, offset = self.slope[row], self.offset[row]
        ends = [slope * delta[:, None] + offset for delta in (nearest, furthest)]  # (c, D)
        above = torch.maximum(self._cubes(ends[0]), self._cubes(ends[1])) - threshold
        below = self._cubes(_smallest_size(*ends)) - threshold
        below = below.clamp_min(0) * smallest.square()
        # The bound by |x̂|/δ holds for δ > 0 and rays on which δ/scale is affine in u.
        inverse = [delta.reciprocal()[:, None] for delta in (nearest, furthest)]
        shape = self._cubes(_smallest_size(*(slope + offset * each for each in inverse)))
        reach = torch.minimum(nearest * sizes[0], furthest * sizes[1]).square()
        far = (nearest * shape - threshold * inverse[0][:, 0].square()) * reach
        affine = (ray.far_scale[row] >= INFINITE_SCALE) & (nearest > 0)
        below = torch.maximum(below, torch.where(affine, far, 0))
        above = above.clamp_min(0) * largest.square()
        low_end, high_end = (
            (self.settings.residual_variance * each).clamp_max(MAX_VARIANCE) for each in (below, above)
        )
        return low_end, high_end

    def _cubes(self, values: Tensor) -> Tensor:
        """Return k (c,) at x̂ (c, D)."""
        return values.abs().pow(3) @ self.weights / 3


def with_residual(
    rays: Iterable[RayGaussian], x: Tensor, residual: Residual, settings: Settings
) -> Iterator[RayGaussian]:
    """Yield the Gaussians along the rays δ·x, with the residual added.

    Args:
        rays: the Gaussians without it.
        x: one ray for each row.
        residual: the residual.
        settings: its two numbers.
    """
    slope, offset, weights = _along(residual, x.detach())
    start = 0
    for ray in rays:
        rows = slice(start, start + len(ray.alpha))
        start = rows.stop
        a, b, c = (each.to(ray.alpha) for each in (slope[rows], offset[rows], weights))
        yield ray._replace(residual=RayResidual(a, b, c, settings))


@torch.no_grad()
def _along(residual: Residual, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return slope and offset (n, D) of x̂ at all levels for δ ≥ alpha, and the weights (D,) of |x̂_d|³."""
    ray = RayTensor.along(x.to(model_device(residual.model)))
    found: list[Tensor] = levels(residual.model, residual.layers, ray) if residual.layers else [ray]
    slopes, offsets, weights = [], [], []
    for own, level in zip(residual.split(found), found, strict=True):
        slope, intercept = torch.zeros_like(level), level
        if isinstance(level, RayTensor):  # a plain tensor does not depend on the input
            slope, intercept = level.slope, level.intercept
        slope, intercept = to_float64(as_rows(slope)), to_float64(as_rows(intercept))
        scale = own.deviations().to(slope)
        slopes.append(slope / scale)
        offsets.append((intercept - own.mean.to(scale)) / scale)
        weights.append(torch.full_like(scale, 1 / len(scale)))
    return torch.cat(slopes, dim=1), torch.cat(offsets, dim=1), torch.cat(weights)


def _inverse_scale(ray: RayGaussian, row: Tensor, u: Tensor) -> Tensor:
    return (1 - u) / ray.far_scale[row] + u / ray.near_scale[row]


def _smallest_size(one: Tensor, other: Tensor) -> Tensor:
    """Return the smallest absolute value of an affine function between two of its values."""
    return torch.minimum(one.abs(), other.abs()) * (one * other > 0)
