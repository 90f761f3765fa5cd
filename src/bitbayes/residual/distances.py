"""How far features lie from the training data, in deviations: one number for each row.

Up to `LARGEST_WIDTH` features: d(h) = √((h − μ)ᵀ S⁻¹ (h − μ)/D), the Mahalanobis distance in units of its
size on the data. S are the training data's second moments about their mean, in units of the columns'
deviations and shrunk (`LevelSums.correlations`).

More features, and images: d(x) = (1/D Σ |x̂|³/3)^⅓, with x̂ = (x − μ)/deviation. It needs no correlations. Its
cube is the variance of infinitely many ReLU features at the input (arXiv 2010.02709).

Both are norms of h − μ, so that d³ is convex, and grows like δ³ along every ray on which the features move.

`ClassDistance` is the least of several such norms: of the distances from the means of the classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.precision import without_autocast
from bitbayes.residual.sums import LevelSums
from bitbayes.tensors import TensorBundle


# A share of the variance between classes above this would be rounding.
LARGEST_SHARE = 1 - 1e-9


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
    def of(cls, sums: LevelSums, device: torch.device, dtype: torch.dtype) -> Distance:
        """The distance from the data with these sums."""
        deviations, d = sums.deviations(), len(sums.mean)
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
        return self.norm(rows.to(self.mean.dtype) - self.mean - self.rest)

    def norm(self, gaps: Tensor) -> Tensor:
        """The distance (n,) between points whose features differ by these gaps (n, d)."""
        return self._size(self._scaled(gaps))

    def coordinates(self, gaps: Tensor) -> Tensor:
        """Gaps (n, d) in coordinates whose norm (of power 3, if uncorrelated) is `norm`, in float64."""
        return self._scaled(gaps) * self.unit

    def _scaled(self, gaps: Tensor) -> Tensor:
        """The coordinates in units of `unit`. In float64, in which no square and no cube overflows."""
        if self.matrix.dim() == 1:
            return (gaps * self.matrix).double()
        with without_autocast(gaps.device):
            return (gaps @ self.matrix).double()

    def _size(self, scaled: Tensor) -> Tensor:
        size: Tensor = torch.linalg.vector_norm(scaled, 2 if self.matrix.dim() == 2 else 3, dim=1)
        return size * self.unit


@dataclass(frozen=True)
class ClassDistance(Distance):
    """The distance from the nearest class: d(h) = min_c √(Σⱼ wⱼ (tⱼ − mⱼ(c))²).

    t are coordinates in which the training data have the covariance 1, and the means m(c) of the classes are
    uncorrelated. βⱼ is the share of the variance along tⱼ that lies between classes, and wⱼ = βⱼ/(1 − βⱼ),
    divided by the sum of all. So what tells classes apart counts. These are the weights of the squares in
    the relative Mahalanobis distance (Ren et al. 2021), which is no norm.

    centres: (c, r), the means of all classes that have points, in the coordinates of `matrix` (d, r).
    """

    centres: Tensor

    @classmethod
    def of(cls, sums: LevelSums, device: torch.device, dtype: torch.dtype) -> ClassDistance:
        """The distance from the nearest class of the data with these sums, which have means of classes."""
        deviations, known = sums.deviations(), sums.class_counts > 0
        gaps, shares = sums.class_means[known] - sums.mean, sums.class_counts[known] / sums.count
        root = torch.linalg.cholesky(sums.correlations())
        means = torch.linalg.solve_triangular(root, (gaps / deviations).T, upper=False).T  # (c, d)
        _, values, vectors = torch.linalg.svd(means * shares.sqrt()[:, None], full_matrices=False)
        most = min(len(means) - 1, means.shape[1])  # the means span no more directions
        between = values[:most].square().clamp_max(LARGEST_SHARE)
        weights = between / (1 - between)
        weights = weights / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
        directions = vectors[:most].T * weights.sqrt()  # (d, r)
        matrix = torch.linalg.solve_triangular(root.T, directions, upper=True) / deviations[:, None]
        unit = matrix.abs().sum(0).amax()[None] if most else weights.new_zeros(1)
        unit = torch.where(unit > 0, unit, 1.0)
        centres = (gaps @ matrix / unit).to(device)
        return cls(*_centred(sums, device, dtype), (matrix / unit).to(device, dtype), unit.to(device), centres)

    def __call__(self, rows: Tensor) -> Tensor:
        """The distances (n,), in float64, of features as rows (n, d): finite up to 1e36; differentiable."""
        scaled = self._scaled(rows.to(self.mean.dtype) - self.mean - self.rest)  # (n, r)
        # |t|² is the same for all centres.
        nearest = (self.centres.square().sum(1) / 2 - scaled @ self.centres.T).argmin(1)
        return self._size(scaled - self.centres[nearest])


def _centred(sums: LevelSums, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The mean in a precision, and what it loses by that."""
    mean = sums.mean.to(dtype, copy=True)
    return mean.to(device), (sums.mean - mean.double()).to(device, dtype)


def is_finite(sums: LevelSums) -> bool:
    """Whether no sum has overflowed."""
    return math.isfinite(float(sums.fourths.sum())) and bool(sums.products.isfinite().all())
