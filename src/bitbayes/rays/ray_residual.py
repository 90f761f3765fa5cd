"""The residual along rays: what it adds to the variance of every logit, on cells of a ray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.logits import LogitGaussian
from bitbayes.rays.ray_gaussian import INFINITE_SCALE, RayGaussian
from bitbayes.residual.kernel import Residual, widened

# Beside it every mean is 0, and it is not infinite.
MAX_VARIANCE = 1e250


class RayResidual(NamedTuple):
    """σ²·max(0, k(δ·x) − threshold) for n rays: x̂ = slope·δ + offset (n, D), k = Σ weights |x̂|³/3."""

    slope: Tensor
    offset: Tensor
    weights: Tensor
    residual: Residual

    @property
    def moves(self) -> Tensor:
        """Whether δ·x does, (n,): all but x = 0."""
        return self.slope.abs().amax(1) > 0

    def standing(self, gaussian: LogitGaussian) -> LogitGaussian:
        """The Gaussian with the residual at δ = 0, which is all there is where δ·x does not move."""
        return widened(
            gaussian, self._cubes(self.offset).sqrt(), self.residual.variance, self.residual.threshold
        )

    def range(self, ray: RayGaussian, row: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds (c,) on it, in units of scale², for low ≤ u ≤ high on the rays of the given numbers.

        k is convex in δ, so it is largest at an end. Below, each dimension's |x̂| at its smallest; near
        infinity that of |x̂|/δ, with (δ/scale)² for 1/scale², which goes to 0 there and would lose all.
        """
        nearest, furthest = ray.delta(row, high), ray.delta(row, low)  # (c,)
        sizes = [_inverse_scale(ray, row, u) for u in (high, low)]
        smallest, largest = torch.minimum(*sizes), torch.maximum(*sizes)
        slope, offset = self.slope[row], self.offset[row]
        ends = [slope * delta[:, None] + offset for delta in (nearest, furthest)]  # (c, D)
        above = torch.maximum(self._cubes(ends[0]), self._cubes(ends[1])) - self.residual.threshold
        below = self._cubes(_smallest_size(*ends)) - self.residual.threshold
        below = below.clamp_min(0) * smallest.square()
        # The same in 1/δ, for δ > 0 and rays on which δ/scale is affine in u.
        inverse = [delta.reciprocal()[:, None] for delta in (nearest, furthest)]
        shape = self._cubes(_smallest_size(*(slope + offset * each for each in inverse)))
        reach = torch.minimum(nearest * sizes[0], furthest * sizes[1]).square()
        far = (nearest * shape - self.residual.threshold * inverse[0][:, 0].square()) * reach
        affine = (ray.far_scale[row] >= INFINITE_SCALE) & (nearest > 0)
        below = torch.maximum(below, torch.where(affine, far, 0))
        above = above.clamp_min(0) * largest.square()
        variance = self.residual.variance
        return (variance * below).clamp_max(MAX_VARIANCE), (variance * above).clamp_max(MAX_VARIANCE)

    def _cubes(self, values: Tensor) -> Tensor:
        """k of x̂ (c, D), (c,)."""
        return values.abs().pow(3) @ self.weights / 3


def with_residual(rays: Iterable[RayGaussian], x: Tensor, residual: Residual) -> Iterator[RayGaussian]:
    """The Gaussians along the rays δ·x, with the residual."""
    slope, offset, weights = residual.moments.along(x.detach())
    start = 0
    for ray in rays:
        rows = slice(start, start + len(ray.alpha))
        start = rows.stop
        a, b, c = (each.to(ray.alpha) for each in (slope[rows], offset[rows], weights))
        yield ray._replace(residual=RayResidual(a, b, c, residual))


def _inverse_scale(ray: RayGaussian, row: Tensor, u: Tensor) -> Tensor:
    return (1 - u) / ray.far_scale[row] + u / ray.near_scale[row]


def _smallest_size(one: Tensor, other: Tensor) -> Tensor:
    """The smallest |·| of an affine function between two of its values."""
    return torch.minimum(one.abs(), other.abs()) * (one * other > 0)
