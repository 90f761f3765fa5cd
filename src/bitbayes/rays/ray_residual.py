"""The residual along rays: what it adds to the variance of every logit, on cells of a ray.

For δ ≥ alpha the features of each level are affine in δ, and so are their coordinates, whose norm is the
distance: d(δ) = ‖slope·δ + offset‖. d³ is convex in δ. So on a cell it is largest at an end, and smallest at
the vertex or at the end that is next to it. The square of the distance from the classes is the least of
several such squares minus numbers, or 0; the same holds for each of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.logits import LogitGaussian
from bitbayes.model import model_device, run_levels
from bitbayes.precision import to_float64
from bitbayes.rays.ray_gaussian import INFINITE_SCALE, RayGaussian
from bitbayes.rays.ray_tensor import RayTensor
from bitbayes.residual import ClassDistance, Distance, Residual, as_rows
from bitbayes.settings import Settings

# The largest variance that is added, and the largest cube of a distance. They are finite, and every mean is
# negligible beside them.
MAX_VARIANCE = MAX_CUBE = 1e250
# The largest δ. It is finite, so that 0·δ is 0.
MAX_DELTA = 1e300


class EuclideanLevel(NamedTuple):
    """d² = max(0, min_c (speed·δ − start)² + rest) for n rays and c centres.

    speed: (n, 1), the size of the slope of the coordinates.
    start: (n, c), minus their offset along the slope; 0 where nothing moves.
    rest: (n, c), the square of their offset across the slope, minus a number for each centre.
    """

    speed: Tensor
    start: Tensor
    rest: Tensor

    @classmethod
    def of(
        cls, slope: Tensor, offset: Tensor, centres: Tensor | None = None, numbers: Tensor | None = None
    ) -> EuclideanLevel:
        """From the coordinates slope·δ + offset, (n, d).

        Args:
            slope: of the coordinates.
            offset: of the coordinates.
            centres: (c, d), from which distances are taken; 0 if they are not given.
            numbers: (c,), what is taken off their squares.
        """
        centres = torch.zeros_like(offset[:1]) if centres is None else centres
        numbers = offset.new_zeros(len(centres)) if numbers is None else numbers
        # No square of a slope, which may underflow, and no vertex −start/speed, which may overflow.
        largest = slope.abs().amax(1, keepdim=True) if slope.shape[1] else slope.sum(1, keepdim=True)
        unit = slope / torch.where(largest > 0, largest, 1.0)
        size = unit.norm(dim=1, keepdim=True)
        unit = unit / torch.where(size > 0, size, 1.0)
        starts, rests = [], []
        for centre, number in zip(centres, numbers, strict=True):
            gap = offset - centre
            along = (unit * gap).sum(1, keepdim=True)
            starts.append(-along)
            # The gap projected off the slope: ‖gap‖² − along² would lose all digits far from the data.
            rests.append((gap - along * unit).square().sum(1, keepdim=True) - number)
        return cls(largest * size, torch.cat(starts, 1), torch.cat(rests, 1))

    @property
    def moves(self) -> Tensor:
        """Whether the features move with δ, (n,)."""
        return self.speed[:, 0] > 0

    @property
    def width(self) -> int:
        """How many numbers one cell takes."""
        return self.start.shape[1]

    def cubes(self, row: Tensor, delta: Tensor) -> Tensor:
        """d³ (m,) at δ (m,), on the rays with the numbers `row` (m,)."""
        return _least_cubes(self._squares(row, delta))

    def largest(self, row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """At least the largest d³ (m,) for low ≤ δ ≤ high: from the centre whose largest one is least."""
        return _least_cubes(torch.maximum(self._squares(row, low), self._squares(row, high)))

    def smallest(self, row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The smallest d³ (m,) for low ≤ δ ≤ high."""
        speed, start, rest = (each[row] for each in self)
        ends = (speed * each[:, None] - start for each in (low, high))
        return _least_cubes(_smallest_size(*ends).square() + rest)

    def smallest_relative(self, row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The smallest (d/δ)³ (m,) for low ≤ δ ≤ high, low > 0.

        (d/δ)² = (speed − start·t)² + rest·t² at t = 1/δ is least at t = speed·start/(start² + rest), or at an
        end if start² + rest is not positive.
        """
        speed, start, rest = (each[row] for each in self)
        squared = start.square() + rest
        ends = high.reciprocal()[:, None], low.reciprocal()[:, None]
        least = speed * start / torch.where(squared > 0, squared, 1.0)
        places = torch.where(squared > 0, least.clamp(*ends), ends[0]), ends[1]
        values = ((speed - start * t).square() + rest * t.square() for t in places)
        return _least_cubes(torch.minimum(*values))

    def _squares(self, row: Tensor, delta: Tensor) -> Tensor:
        """The squared distances (m, c) from all centres."""
        return (self.speed[row] * delta[:, None] - self.start[row]).square() + self.rest[row]


class CubicLevel(NamedTuple):
    """d³ = Σ |slope·δ + offset|³ for n rays, (n, D) each."""

    slope: Tensor
    offset: Tensor

    @property
    def moves(self) -> Tensor:
        """Whether the features move with δ, (n,)."""
        return self.slope.abs().amax(1) > 0

    @property
    def width(self) -> int:
        """How many numbers one cell takes."""
        return self.slope.shape[1]

    def cubes(self, row: Tensor, delta: Tensor) -> Tensor:
        """d³ (m,) at δ (m,), on the rays with the numbers `row` (m,)."""
        return _cubes(self.slope[row] * delta[:, None] + self.offset[row])

    def largest(self, row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The largest d³ (m,) for low ≤ δ ≤ high."""
        return torch.maximum(self.cubes(row, low), self.cubes(row, high))

    def smallest(self, row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """At most the smallest d³ (m,) for low ≤ δ ≤ high: each dimension at its own smallest size."""
        slope, offset = self.slope[row], self.offset[row]
        return _cubes(_smallest_size(*(slope * each[:, None] + offset for each in (low, high))))

    def smallest_relative(self, row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """At most the smallest (d/δ)³ (m,) for low ≤ δ ≤ high, low > 0."""
        slope, offset = self.slope[row], self.offset[row]
        return _cubes(_smallest_size(*(slope + offset / each[:, None] for each in (low, high))))


RayLevel = EuclideanLevel | CubicLevel


class RayResidual(NamedTuple):
    """v(δ·x) for n rays, from the distances at all levels."""

    levels: tuple[RayLevel, ...]
    settings: Settings

    @property
    def width(self) -> int:
        """How many numbers one cell takes."""
        return max(each.width for each in self.levels)

    @property
    def moves(self) -> Tensor:
        """Whether v grows beyond all bounds along the ray, (n,): a level that counts moves with δ."""
        counts = self.settings.counting(len(self.levels))
        return torch.stack([each.moves & used for each, used in zip(self.levels, counts, strict=True)]).any(0)

    def at_rest(self, gaussian: LogitGaussian) -> LogitGaussian:
        """Return the Gaussian with the residual at δ = 0, all there is of a ray along which nothing moves.

        `gaussian`: at the temperature already, like all of a `RayGaussian`.
        """
        zeros = gaussian.scale.new_zeros(len(gaussian.scale))
        row = torch.arange(len(zeros), device=zeros.device)
        cubes = torch.stack([each.cubes(row, zeros) for each in self.levels], dim=1)
        return gaussian.plus_independent(self.settings.variances_of_cubes(cubes).sqrt())

    def range(self, ray: RayGaussian, row: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds (c,) on the added variance, in units of scale², for low ≤ u ≤ high.

        `row` (c,) are the numbers of the rays. Near infinity 1/scale² goes to 0, and so does the lower bound
        by the smallest d³. There the smallest (d/δ)³ is used, with (δ/scale)² in place of 1/scale².
        """
        nearest, furthest = (ray.delta(row, u).clamp_max(MAX_DELTA) for u in (high, low))  # (c,)
        sizes = [_inverse_scale(ray, row, u) for u in (high, low)]
        smallest, largest = torch.minimum(*sizes), torch.maximum(*sizes)
        most = torch.stack([each.largest(row, nearest, furthest) for each in self.levels], 1)
        above = self.settings.variances_of_cubes(most.clamp_max(MAX_CUBE)) * _squares(largest)
        counts = torch.tensor(self.settings.counting(len(self.levels)), device=most.device)
        above = torch.where(((most > MAX_CUBE) & counts).any(1), MAX_VARIANCE, above)
        below = torch.stack([each.smallest(row, nearest, furthest) for each in self.levels], 1)
        below = self.settings.variances_of_cubes(below.clamp_max(MAX_CUBE)) * _squares(smallest)
        # The bound by d/δ holds for δ > 0 and rays on which δ/scale is affine in u.
        affine = (ray.far_scale[row] >= INFINITE_SCALE) & (nearest > 0)
        start = torch.where(affine, nearest, 1.0)
        relative = torch.stack(
            [each.smallest_relative(row, start, torch.maximum(start, furthest)) for each in self.levels], 1
        )
        reach = _squares(torch.minimum(nearest * sizes[0], furthest * sizes[1]))
        relative = (start[:, None] * relative).clamp_max(MAX_CUBE)
        far = self.settings.variances_of_cubes(relative, start.pow(-2)) * reach
        below = torch.maximum(below, torch.where(affine, far, 0))
        return below.clamp_max(MAX_VARIANCE), above.clamp_max(MAX_VARIANCE)


def with_residual(
    rays: Iterable[RayGaussian], x: Tensor, residual: Residual, settings: Settings
) -> Iterator[RayGaussian]:
    """Yield the Gaussians along the rays δ·x, with the residual added.

    Args:
        rays: the Gaussians without it.
        x: one ray for each row.
        residual: the residual.
        settings: its numbers.
    """
    along = _along(residual, x.detach())
    start = 0
    for ray in rays:
        rows = slice(start, start + len(ray.alpha))
        start = rows.stop
        levels = tuple(
            _level(distance, *(each[rows].to(ray.alpha) for each in parts)) for distance, *parts in along
        )
        yield ray._replace(residual=RayResidual(levels, settings))


def _level(distance: Distance, slope: Tensor, intercept: Tensor) -> RayLevel:
    distance = distance.to(slope.device)
    slope, offset = (distance.scaled(each) * distance.unit for each in (slope, distance.gaps(intercept)))
    if distance.matrix.dim() == 1:
        return CubicLevel(slope, offset)
    if isinstance(distance, ClassDistance):
        centres, numbers = distance.centres * distance.unit, distance.offsets * distance.unit.square()
        return EuclideanLevel.of(slope, offset, centres, numbers)
    return EuclideanLevel.of(slope, offset)


@torch.no_grad()
def _along(residual: Residual, x: Tensor) -> list[tuple[Distance, Tensor, Tensor]]:
    """Return each distance, and slope and intercept (n, d) of its features for δ ≥ alpha."""
    ray = RayTensor.along(x.to(model_device(residual.model)))
    hidden = run_levels(residual.network(), residual.levels, ray)
    parts = []
    for name, level in zip(residual.names, residual.with_repeats(ray, hidden), strict=True):
        slope, intercept = torch.zeros_like(level), level
        if isinstance(level, RayTensor):  # a plain tensor does not depend on the input
            slope, intercept = level.slope, level.intercept
        distance = residual.distance(name, slope.device, torch.float64)
        parts.append((distance, to_float64(as_rows(slope)), to_float64(as_rows(intercept))))
    return parts


def _inverse_scale(ray: RayGaussian, row: Tensor, u: Tensor) -> Tensor:
    return (1 - u) / ray.far_scale[row] + u / ray.near_scale[row]


def _squares(values: Tensor) -> Tensor:
    """Return finite squares, so that 0 times them is 0."""
    return values.square().clamp_max(MAX_VARIANCE)


def _least_cubes(squares: Tensor) -> Tensor:
    """Return d³ (m,) from squares (m, c), of which the least counts; d is 0 where it is negative."""
    return squares.amin(1).clamp_min(0).pow(1.5)


def _cubes(values: Tensor) -> Tensor:
    return values.abs().pow(3).sum(1)


def _smallest_size(one: Tensor, other: Tensor) -> Tensor:
    """Return the smallest absolute value of an affine function between two of its values."""
    return torch.minimum(one.abs(), other.abs()) * (one * other > 0)
