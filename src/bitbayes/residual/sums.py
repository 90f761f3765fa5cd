"""What is kept of the training data's features at one level: sums that add, and the deviations they give.

Central sums, and not those of x, x², …: a mean of 1e9 would leave no digit of the variance (Pébay, 2008).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.errors import DataError
from bitbayes.precision import to_float64
from bitbayes.tensors import TensorBundle, check_cancellation, second_moments

# A deviation that fewer points determine gets a floor. For a pixel that is lit in m images, m points do.
LEAST_POINTS = 10
# A feature that is active in fewer than one of so many points counts as active in one of so many.
RARE = 30
# Rounding errors up to which a column counts as constant: those of its mean, and of features that a network
# computes, which rounds them in another way in a batch of another size.
ROUNDINGS = 64
# What is left of a sum of weights is 0 up to this share of it.
COUNT_ROUNDING = 1e-12
# The deviation of a column that is constant, relative to its value: the precision of bfloat16, and some.
CONSTANT = 2.0**-6
# Up to this many features their correlations are kept, and up to this many classes their means.
LARGEST_WIDTH = 2048
LARGEST_CLASSES = 2048
# How many numbers to sum up at once; more on a GPU, to amortise kernel launches.
STEP_NUMBERS, GPU_STEP_NUMBERS = 2**20, 2**24


@dataclass(frozen=True)
class LevelSums(TensorBundle):
    """Sums over the rows of features, in float64: `count` (), `mean` (d,), and central powers, (d,) each.

    `squares`, `cubes` and `fourths` are the sums of (x − mean)², ³ and ⁴. `products` (d, d) are the sums of
    (x − mean)(x − mean)ᵀ, or (0, 0) if the correlations are not kept. `class_counts` (k,) and `class_means`
    (k, d) are those of the rows of each class, or (0,) and (0, 0) if there are none. All of them add.
    `rounding` () is that of the rows, relative to their size; of a sum it is the largest. A row with the
    weight w counts w times, and counts are sums of weights.

    >>> a, b = torch.randn(5, 3).double(), torch.randn(9, 3).double()
    >>> both = LevelSums.of(a, correlated=True) + LevelSums.of(b, correlated=True)
    >>> torch.allclose(both.products / 14, torch.cat([a, b]).T.cov(correction=0))
    True
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    cubes: Tensor
    fourths: Tensor
    products: Tensor
    rounding: Tensor
    class_counts: Tensor
    class_means: Tensor

    @classmethod
    def of(
        cls,
        rows: Tensor,
        *,
        correlated: bool,
        labels: Tensor | None = None,
        classes: int = 0,
        weights: Tensor | None = None,
    ) -> LevelSums:
        """The sums of features as rows (n, d), in any precision.

        Args:
            rows: the features.
            correlated: whether to keep the products.
            labels: (n,), the classes of the rows, from 0 to `classes` − 1.
            classes: their number; 0 keeps no means of classes.
            weights: (n,), how many times each row counts; None is once.
        """
        numbers = GPU_STEP_NUMBERS if rows.device.type == "cuda" else STEP_NUMBERS
        # A few rows at a time: the sums take some copies of them in float64.
        step = max(1, numbers // max(1, rows.shape[1]))
        parts = torch.split(rows, step)
        nothing = [None] * len(parts)
        theirs = torch.split(labels, step) if classes and labels is not None else nothing
        counts = nothing if weights is None else torch.split(weights, step)
        first, *others = (
            cls._of(part, correlated, own, classes, count)
            for part, own, count in zip(parts, theirs, counts, strict=True)
        )
        return sum(others, first)

    @classmethod
    def _of(
        cls, rows: Tensor, correlated: bool, labels: Tensor | None, classes: int, weights: Tensor | None
    ) -> LevelSums:
        precision = rows.dtype if rows.is_floating_point() else torch.float64
        rows = to_float64(rows)
        # Sums over rows as products with their weights, or with ones: a GPU takes half the time of `sum(0)`.
        counts = rows.new_ones(len(rows)) if weights is None else weights.to(rows)
        count = rows.new_full((), len(rows)) if weights is None else counts.sum()
        total = _positive(count)
        mean = (counts @ rows) / total
        gaps = rows - mean
        # The mean of many equal numbers is off by many roundings: a constant column would seem to vary.
        shift = (counts @ gaps) / total
        mean, gaps = mean + shift, gaps.sub_(shift)
        squares = gaps.square()
        powers = squares, squares * gaps, squares.square()
        products = rows.new_zeros(0, 0)
        if correlated:
            products = second_moments(gaps if weights is None else gaps * counts.sqrt()[:, None])
        squares, cubes, fourths = (counts @ each for each in powers)
        rounding = rows.new_full((), torch.finfo(precision).eps)
        by_class = rows.new_zeros(0), rows.new_zeros(0, 0)
        if labels is not None:
            # MPS has other rows: no float64
            by_class = _class_means(mean, gaps, labels.to(gaps.device), classes, counts)
        return cls(count, mean, squares, cubes, fourths, products, rounding, *by_class)

    @property
    def correlated(self) -> bool:
        """Whether the correlations of the columns are kept."""
        return len(self.products) > 0

    @property
    def has_classes(self) -> bool:
        """Whether the means of classes are kept."""
        return len(self.class_counts) > 0

    def __add__(self, other: LevelSums) -> LevelSums:
        if self.mean.shape != other.mean.shape:
            raise DataError(
                f"inputs of {len(self.mean)} and of {len(other.mean)} numbers: "
                "the residual needs all of one size, and residual=False any"
            )
        count = self.count + other.count
        a, b = self.count / _positive(count), other.count / _positive(count)
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
        products = self.products + other.products
        if self.correlated:
            products = torch.addmm(products, gap[:, None] * (self.count * b), gap[None])
        rounding = torch.maximum(self.rounding, other.rounding)
        counts = self.class_counts + other.class_counts
        share = (other.class_counts / _positive(counts))[:, None]
        means = self.class_means + (other.class_means - self.class_means) * share
        return LevelSums(
            count, self.mean + gap * b, squares, cubes, fourths, products, rounding, counts, means
        )

    def without(self, part: LevelSums, max_ratio: float) -> LevelSums:
        """The sums of the rows that are left when a part of them is taken out.

        Raises a `DataError` if that part is all but 1/`max_ratio` of a sum: see `check_cancellation`.
        """
        count = self.count - part.count
        check_cancellation(self.count, count, max_ratio)
        mean = self.mean + (self.mean - part.mean) * (part.count / count)
        whole, theirs = self._powers_about(mean), part._powers_about(mean)
        varies = self.count * self._rounding_variance(mean) < whole[0]
        squares, cubes, fourths = (
            torch.where(varies, a - b, 0.0) for a, b in zip(whole[:3], theirs[:3], strict=True)
        )
        check_cancellation(torch.where(varies, whole[0], 0.0), squares, max_ratio)
        check_cancellation(torch.where(varies, whole[2], 0.0), fourths, max_ratio)
        products = whole[3] - theirs[3]
        if self.correlated:
            products = products * (varies[:, None] & varies)
        counts = self.class_counts - part.class_counts
        # Numbers of points are exact. What is left of a sum of weights may be a rounding.
        counts = torch.where(counts.abs() <= COUNT_ROUNDING * self.class_counts, 0.0, counts)
        left = counts > 0
        check_cancellation(torch.zeros_like(counts), counts, max_ratio)  # none is negative
        gaps = (self.class_means - part.class_means) * (part.class_counts / _positive(counts))[:, None]
        means = (self.class_means + gaps) * left[:, None]
        return LevelSums(count, mean, squares, cubes, fourths, products, self.rounding, counts, means)

    def _powers_about(self, centre: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The sums of (x − centre)², ³ and ⁴, and of the products."""
        gap = self.mean - centre
        squares = self.squares + self.count * gap**2
        cubes = self.cubes + 3 * gap * self.squares + self.count * gap**3
        fourths = self.fourths + 4 * gap * self.cubes + 6 * gap**2 * self.squares + self.count * gap**4
        products = self.products
        if self.correlated:
            products = products + self.count * gap[:, None] * gap
        return squares, cubes, fourths, products

    def _rounding_variance(self, mean: Tensor) -> Tensor:
        """The variance (d,) that a constant column of this mean may have from rounding."""
        return ((ROUNDINGS * self.rounding).clamp_max(CONSTANT) * mean).square()

    def varies(self) -> Tensor:
        """Which columns vary, (d,)."""
        return self.squares > self.count * self._rounding_variance(self.mean)

    def deviations(self, at_zero: float = 1.0) -> Tensor:
        """The deviation (d,) that each column is divided by, in the column's unit.

        With correlations it is the standard deviation. But a column that is not 0 in fewer than one of
        `RARE` points has that of a column of the same size in one of `RARE` points: √(fourths/squares/RARE).
        It would be many standard deviations away whenever it is active, although the data have it. The
        number of points that vary is squares²/fourths, if these vary equally.

        Without correlations it is (mean of (x − mean)⁴)^¼. For a pixel that is lit in few images it is near
        the lit value.

        Columns that vary in fewer than `LEAST_POINTS` points have a floor: the root of the mean variance of
        all columns. A column that is constant at c has `CONSTANT`·|c|; at 0 it has `at_zero` times the median
        of the columns that vary.

        >>> LevelSums.of(torch.tensor([[0.0, 1.0], [2.0, 5.0]]).repeat(5, 1), correlated=True).deviations()
        tensor([1., 2.], dtype=torch.float64)
        """
        varies = self.varies()
        variance = self.squares / self.count
        if self.correlated:
            active = self.fourths / torch.where(varies, self.squares, 1.0)
            own = torch.maximum(variance, active / RARE).sqrt()
        else:
            own = (self.fourths / self.count).sqrt().sqrt()
        determined = self.squares.square() >= LEAST_POINTS * self.fourths
        found = torch.where(determined, own, torch.maximum(own, variance.mean().sqrt()))
        typical = found[varies].median() if bool(varies.any()) else found.new_ones(())
        constant = torch.where(self.mean != 0, CONSTANT * self.mean.abs(), at_zero * typical)
        return torch.where(varies, found, constant)

    def moments(self) -> Tensor:
        """The second moments (d, d) of the columns in units of `deviations`.

        Where the deviation is larger than the standard deviation, the difference of their squares counts as
        variance of that column alone, so that the diagonal is 1.
        """
        deviations, varies = self.deviations(), self.varies()
        moments = self.products / self.count / deviations[:, None] / deviations
        moments = torch.where(varies[:, None] & varies, moments, 0.0)
        moments.diagonal().fill_(1.0)
        return moments

    def shrinkage(self, moments: Tensor) -> float:
        """The share by which `moments` are shrunk: the oracle approximating one of Chen et al. (2010).

        It depends on nothing but these moments and their number. Directions in which few data vary would be
        too short otherwise.
        """
        d, squared = len(moments), moments.square().sum()
        spread = float((self.count + 1 - 2 / d) * (squared - d))
        share = float((1 - 2 / d) * squared + d**2) / spread if spread > 0 else 1.0
        return min(1.0, max(SMALLEST_SHRINKAGE, share))

    def correlations(self) -> Tensor:
        """The second moments (d, d) in units of `deviations`, shrunk towards the identity."""
        moments = self.moments()
        return shrunk(moments, self.shrinkage(moments))


def _class_means(
    mean: Tensor, gaps: Tensor, labels: Tensor, classes: int, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The weight of the rows mean + gaps (n, d) of each class, (k,), and their means (k, d): 0 if it is 0."""
    counts = gaps.new_zeros(classes).index_add_(0, labels, weights)
    totals = gaps.new_zeros(classes, gaps.shape[1]).index_add_(0, labels, gaps * weights[:, None])
    means = totals / _positive(counts)[:, None] + mean
    return counts, means * (counts > 0)[:, None]


def _positive(counts: Tensor) -> Tensor:
    """Counts to divide by: those that are 0 as 1."""
    return torch.where(counts > 0, counts, 1.0)


def shrunk(moments: Tensor, share: float) -> Tensor:
    """(1 − share)·moments + share·(their mean diagonal)·1, positive definite for a positive share."""
    mean = moments.diagonal().mean().clamp_min(SMALLEST_VARIANCE)
    found = (1 - share) * moments
    found.diagonal().add_(share * mean)
    return found


# Shorter directions than this share of the mean one would be rounding errors of float32.
SMALLEST_SHRINKAGE = 1e-4
# The least mean variance that moments are shrunk towards: classes may have none within them.
SMALLEST_VARIANCE = 1e-6
