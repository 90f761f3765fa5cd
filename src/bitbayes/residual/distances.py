"""How far features lie from the training data, in deviations: one number for each row.

Up to `LARGEST_WIDTH` features: d(h) = √((h − μ)ᵀ S⁻¹ (h − μ)/D), the Mahalanobis distance in units of its
size on the data. S are the training data's second moments about their mean, in units of the columns'
deviations and shrunk (`LevelSums.correlations`).

More features, and images: d(x) = (1/D Σ |x̂|³/3)^⅓, with x̂ = (x − μ)/deviation. It needs no correlations. Its
cube is the variance of infinitely many ReLU features at the input (arXiv 2010.02709).

Both are norms of h − μ, so that d³ is convex, and grows like δ³ along every ray on which the features move.

`ClassDistance` compares the distance from the nearest class with that from all data. Its square is the least
of several squared norms minus numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.precision import without_autocast
from bitbayes.residual.sums import LevelSums, shrunk
from bitbayes.tensors import TensorBundle

# Shares of the variance between classes below this are rounding, and so are those within classes.
SMALLEST_SHARE = 1e-9


@dataclass(frozen=True)
class Distance(TensorBundle):
    """The distance of one level on one device and in one precision: what does not depend on x, computed once.

    mean: (d,), of the training data.
    rest: (d,), what the mean loses by rounding, so that a mean of many deviations costs no digits.
    matrix: (d, d) or (d,): (h − mean − rest) times it are coordinates whose norm is the distance / `unit`.
    unit: (1,), in float64; it keeps the matrix small, so that no input overflows.
    """

    mean: Tensor
    rest: Tensor
    matrix: Tensor
    unit: Tensor

    @classmethod
    def of(cls, sums: LevelSums, device: torch.device, dtype: torch.dtype, at_zero: float = 1.0) -> Distance:
        """The distance from the data with these sums; `at_zero` as in `LevelSums.deviations`."""
        deviations, d = sums.deviations(at_zero), len(sums.mean)
        if sums.correlated:
            values, vectors = torch.linalg.eigh(sums.correlations())
            matrix = vectors * (values * d).rsqrt() / deviations[:, None]
            unit = matrix.abs().sum(0).amax()[None]
            matrix = matrix / unit
        else:
            inverse = (deviations * (3 * d) ** (1 / 3)).reciprocal()
            unit = inverse.amax(0, keepdim=True)
            # Every column keeps a positive weight, so that the distance grows along every ray.
            matrix = (inverse / unit).clamp_min(torch.finfo(dtype).tiny)
        return cls(*_centred(sums, device, dtype), matrix.to(device, dtype), unit.to(device))

    def __call__(self, rows: Tensor) -> Tensor:
        """The distances (n,), in float64, of features as rows (n, d): finite up to 1e36; differentiable.

        >>> sums = LevelSums.of(torch.tensor([[0.0, 1.0], [2.0, 3.0]]).repeat(5, 1), correlated=False)
        >>> Distance.of(sums, torch.device("cpu"), torch.float32)(torch.tensor([[1.0, 5.0]])) ** 3
        tensor([4.5000], dtype=torch.float64)
        """
        return self.norm(self.gaps(rows))

    def gaps(self, rows: Tensor) -> Tensor:
        """The features (n, d) minus their mean."""
        return rows.to(self.mean.dtype) - self.mean - self.rest

    def norm(self, gaps: Tensor) -> Tensor:
        """The size (n,), in float64, of differences (n, d) of features."""
        scaled, power = self.scaled(gaps), 2 if self.matrix.dim() == 2 else 3
        size: Tensor = torch.linalg.vector_norm(scaled, power, dim=1)
        return size * self.unit

    def scaled(self, gaps: Tensor) -> Tensor:
        """The coordinates (n, r) of gaps, in float64, in which no square and no cube overflows.

        `unit` times them have the norm `norm`: of power 2 with correlations, of power 3 without.
        """
        if self.matrix.dim() == 1:
            return (gaps * self.matrix).double()
        with without_autocast(gaps.device):
            return (gaps @ self.matrix).double()

    def reach(self, middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the largest distance (n,) of features that are within a radius (n,) of others.

        Args:
            middle: (n, d), these others.
            radius: the size of the difference, by `norm`.
        """
        size = self(middle)
        return (size - radius).clamp_min(0), size + radius


@dataclass(frozen=True)
class ClassDistance(Distance):
    """How much further it is to the nearest class than to the data as a whole: d² = max(0, min_c R_c).

    R_c = (h − μ(c))ᵀ W⁻¹ (h − μ(c)) − (h − μ)ᵀ (W + B)⁻¹ (h − μ) is the relative Mahalanobis distance (Ren et
    al. 2021). B = Σ_c p_c (μ(c) − μ)(μ(c) − μ)ᵀ is the covariance between classes, and W that within them,
    shrunk as all moments are. On the training data the R of their own classes have the mean 0, up to the
    shrinkage. Directions in which classes do not differ cancel. In coordinates t in which W + B = 1 and the
    means m(c) of the classes are uncorrelated, with the shares βⱼ of the variance along tⱼ that lie between
    classes,

    R_c = Σⱼ (tⱼ − mⱼ(c))²/(1 − βⱼ) − tⱼ² = Σⱼ wⱼ (tⱼ − mⱼ(c)/βⱼ)² − mⱼ(c)²/βⱼ, wⱼ = βⱼ/(1 − βⱼ).

    So d² is the least of squared norms about several centres, minus a number for each. It is divided by the
    number of directions.

    centres: (c, r), m(c)/β of all classes that have points, in the coordinates of `matrix` (d, r).
    offsets: (c,), Σⱼ mⱼ(c)²/βⱼ, in units of `unit`².
    half: (c,), (|centre|² − offset)/2.
    """

    centres: Tensor
    offsets: Tensor
    half: Tensor

    @classmethod
    def of_classes(cls, sums: LevelSums, device: torch.device, dtype: torch.dtype) -> ClassDistance:
        """The distance from the classes of the data with these sums, which have means of classes."""
        deviations, known = sums.deviations(), sums.class_counts > 0
        shares = sums.class_counts[known] / sums.count
        gaps = (sums.class_means[known] - sums.mean) * sums.varies()  # what does not vary has rounding errors
        standard, roots = gaps / deviations, shares.sqrt()[:, None]
        moments, between = sums.moments(), (standard * roots).T @ (standard * roots)
        within = shrunk(moments - between, sums.shrinkage(moments))
        root = torch.linalg.cholesky(within + between)
        means = torch.linalg.solve_triangular(root, standard.T, upper=False).T  # (c, d)
        _, values, vectors = torch.linalg.svd(means * roots, full_matrices=False)
        ratios = values[: len(means) - 1].square()  # the means of c classes span c − 1 directions
        ratios = ratios[ratios > SMALLEST_SHARE].clamp_max(1 - SMALLEST_SHARE)  # β (r,), in descending order
        directions, count = vectors[: len(ratios)].T, max(1, len(ratios))  # (d, r)
        weights = ratios / (1 - ratios) / count
        means = means @ directions  # (c, r)
        matrix = torch.linalg.solve_triangular(root.T, directions * weights.sqrt(), upper=True)
        matrix = matrix / deviations[:, None]
        unit = torch.where(matrix.any(), matrix.abs().sum(0).sum(), 1.0)[None]
        centres = means / ratios * weights.sqrt() / unit
        offsets = (means.square() / ratios).sum(1) / count / unit.square()
        half = (centres.square().sum(1) - offsets) / 2
        matrix, others = (matrix / unit).to(device, dtype), (unit, centres, offsets, half)
        return cls(*_centred(sums, device, dtype), matrix, *(each.to(device) for each in others))

    def __call__(self, rows: Tensor) -> Tensor:
        """The distances (n,), in float64, of features as rows (n, d): finite up to 1e36; differentiable."""
        scaled = self.scaled(self.gaps(rows))  # (n, r)
        # |t|² is the same for all centres.
        nearest = (self.half - scaled @ self.centres.T).argmin(1)
        squares = (scaled - self.centres[nearest]).square().sum(1) - self.offsets[nearest]
        # The root has no derivative at 0.
        away = squares > 0
        return torch.where(away, torch.where(away, squares, 1.0).sqrt(), 0.0) * self.unit

    def reach(self, middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        scaled, radius = self.scaled(self.gaps(middle)), (radius / self.unit)[:, None]
        sizes = torch.stack([(scaled - each).norm(dim=1) for each in self.centres], 1)  # (n, c)
        ends = (sizes - radius).clamp_min(0), sizes + radius
        least, largest = ((each.square() - self.offsets).amin(1).clamp_min(0) for each in ends)
        return least.sqrt() * self.unit, largest.sqrt() * self.unit


def _centred(sums: LevelSums, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The mean in a precision, and what it loses by that."""
    mean = sums.mean.to(dtype, copy=True)
    return mean.to(device), (sums.mean - mean.double()).to(device, dtype)


def is_finite(sums: LevelSums) -> bool:
    """Whether no sum has overflowed."""
    return math.isfinite(float(sums.fourths.sum())) and bool(sums.products.isfinite().all())
