"""The ReLU-GP residual: the variance of infinitely many ReLU features at the input (arXiv 2010.02709).

k(x) = 1/D Σ_d |x̂_d|³/3, the double-sided cubic spline kernel at (x, x), averaged over the D dimensions of the
input; x̂_d = (x_d − mean_d)/deviation_d, with the training data's means and deviations (`InputMoments`). Every
logit gets the variance σ²·max(0, k(x) − threshold) more, independent of all others. It grows like δ³ along
every ray, so deviations outgrow means like δ^½ and confidence goes to 1/k classes. The threshold keeps it
away from the data: below it nothing is added.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from bitbayes.errors import DataError
from bitbayes.tensors import TensorBundle, check_cancellation

# A deviation that fewer points determine gets a floor. For a pixel that is lit in m images, m points do.
LEAST_POINTS = 10
# Rounding errors of its mean up to which a column counts as constant.
ROUNDINGS = 64


@dataclass(frozen=True)
class InputMoments(TensorBundle):
    """Sums over the rows of inputs, in float64: `count` (), `mean` (D,), and central powers, (D,) each.

    `squares`, `cubes` and `fourths` are the sums of (x − mean)², ³ and ⁴. All of them add.

    >>> a, b = torch.randn(5, 3).double(), torch.randn(9, 3).double()
    >>> both = InputMoments.of(a) + InputMoments.of(b)
    >>> torch.allclose(both.squares / 14, torch.cat([a, b]).var(0, correction=0))
    True
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    cubes: Tensor
    fourths: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> InputMoments:
        """The moments of inputs as rows (n, D) in float64."""
        # Sums over rows as products with ones: a GPU takes half the time of `sum(0)`.
        ones = rows.new_ones(len(rows))
        mean = (ones @ rows) / len(rows)
        gaps = rows - mean
        squares = gaps.square()
        powers = squares, squares * gaps, squares.square()
        return cls(rows.new_full((), len(rows)), mean, *(ones @ each for each in powers))

    def __add__(self, other: InputMoments) -> InputMoments:
        if self.mean.shape != other.mean.shape:
            raise DataError(
                f"inputs of {len(self.mean)} and of {len(other.mean)} numbers: "
                "the residual needs all of one size, and residual=False any"
            )
        # Not from Σx², Σx³ and Σx⁴: a mean of 1e9 would leave no digit of the variance (Pébay, 2008).
        count = self.count + other.count
        a, b = self.count / count, other.count / count
        gap = other.mean - self.mean
        between = gap.square() * (self.count * b)
        squares = self.squares + other.squares + between
        cubes = (
            self.cubes + other.cubes + gap * (between * (a - b) + 3 * (a * other.squares - b * self.squares))
        )
        fourths = (
            self.fourths
            + other.fourths
            + gap.square()
            * (between * (a * a - a * b + b * b) + 6 * (a * a * other.squares + b * b * self.squares))
            + 4 * gap * (a * other.cubes - b * self.cubes)
        )
        return InputMoments(count, self.mean + gap * b, squares, cubes, fourths)

    def without(self, part: InputMoments, max_ratio: float) -> InputMoments:
        """The moments of the rows that are left when a part of them is taken out.

        Raises a `DataError` if that part is all but 1/`max_ratio` of a sum: see `check_cancellation`.
        """
        count = self.count - part.count
        check_cancellation(self.count, count, max_ratio)
        mean = self.mean + (self.mean - part.mean) * (part.count / count)
        whole, theirs = self._powers_about(mean), part._powers_about(mean)
        # A constant column has only the rounding error of its mean.
        varies = whole[0] > self.count * (ROUNDINGS * torch.finfo(mean.dtype).eps * mean).square()
        left = [torch.where(varies, a - b, 0.0) for a, b in zip(whole, theirs, strict=True)]
        check_cancellation(torch.where(varies, whole[0], 0.0), left[0], max_ratio)
        check_cancellation(torch.where(varies, whole[2], 0.0), left[2], max_ratio)
        return InputMoments(count, mean, *left)

    def _powers_about(self, centre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The sums of (x − centre)², ³ and ⁴."""
        gap = self.mean - centre
        squares = self.squares + self.count * gap**2
        cubes = self.cubes + 3 * gap * self.squares + self.count * gap**3
        fourths = self.fourths + 4 * gap * self.cubes + 6 * gap**2 * self.squares + self.count * gap**4
        return squares, cubes, fourths

    def split(self, sizes: list[int]) -> list[InputMoments]:
        """The moments of groups of columns, of these sizes; raises if these do not add up to D."""
        if sum(sizes) != len(self.mean):
            raise DataError(
                f"an input of {sum(sizes)} numbers, but the training data's have {len(self.mean)}: the "
                "residual needs all of one size. Use residual=False, or set residual_variance = 0"
            )
        columns = (torch.split(getattr(self, each.name), sizes) for each in fields(self)[1:])
        return [InputMoments(self.count, *each) for each in zip(*columns, strict=True)]

    def deviations(self) -> Tensor:
        """The deviation (D,) that each column is divided by: (mean of (x − mean)⁴)^¼, in the column's unit.

        For a pixel that is lit in few images it is near the lit value; a standard deviation would be far
        below. Columns that never vary, or in fewer than `LEAST_POINTS` points, have a floor: the root of the
        mean variance of all columns.

        >>> InputMoments.of(torch.tensor([[0.0, 1.0], [2.0, 5.0]]).double().repeat(5, 1)).deviations()
        tensor([1., 2.], dtype=torch.float64)
        """
        own = (self.fourths / self.count).sqrt().sqrt()
        floor = (self.squares / self.count).mean().sqrt()
        floor = torch.where(floor > 0, floor, 1.0)  # where no input varies
        # squares²/fourths is the number of points that vary, if these vary equally.
        determined = (own > 0) & (self.squares.square() >= LEAST_POINTS * self.fourths)
        return torch.where(determined, own, torch.maximum(own, floor))


@dataclass(frozen=True)
class Kernel(TensorBundle):
    """√k(x) on one device and in one precision: what does not depend on x, computed once.

    (x − mean)·inverse + rest is x̂/((3D)^⅓·unit): the cubes of its sizes add up to k(x)/unit³.

    mean, inverse: (D,); no inverse is above 1, so that no input overflows.
    rest: (D,), corrects the rounding of the mean, so that a mean of many deviations costs no digits.
    unit: (1,), in float64.
    """

    mean: Tensor
    inverse: Tensor
    rest: Tensor
    unit: Tensor

    @classmethod
    def of(cls, moments: InputMoments, device: torch.device, dtype: torch.dtype) -> Kernel:
        """The kernel of inputs with these moments."""
        inverse = (moments.deviations() * (3 * len(moments.mean)) ** (1 / 3)).reciprocal()
        unit = inverse.amax(0, keepdim=True)
        # Every column keeps a positive weight, so that k grows along every ray.
        inverse = (inverse / unit).clamp_min(torch.finfo(dtype).tiny)
        mean = moments.mean.to(dtype, copy=True)
        rest = (mean.double() - moments.mean) * inverse
        mean, inverse, rest = (each.to(device, dtype) for each in (mean, inverse, rest))
        return cls(mean, inverse, rest, unit.to(device))

    def root(self, rows: Tensor) -> Tensor:
        """√k(x), (n,) in float64, of inputs as rows (n, D): finite up to inputs of 1e36; differentiable in x.

        >>> moments = InputMoments.of(torch.tensor([[0.0, 1.0], [2.0, 3.0]]).double().repeat(5, 1))
        >>> kernel = Kernel.of(moments, torch.device("cpu"), torch.float32)
        >>> kernel.root(torch.tensor([[1.0, 5.0]])) ** 2
        tensor([4.5000], dtype=torch.float64)
        """
        standard = torch.addcmul(self.rest, rows - self.mean, self.inverse)  # (n, D)
        # In float64, in which no cube overflows. Few operations: a GPU pays for each launch.
        size: Tensor = torch.linalg.vector_norm(standard.double(), 3, dim=1)
        return (size * self.unit).pow(1.5)
