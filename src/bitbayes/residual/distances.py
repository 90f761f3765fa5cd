"""How far features lie from the training data, in deviations: one number for each row.

Up to `LARGEST_WIDTH` features: d(h) = √((h − μ)ᵀ S⁻¹ (h − μ)/D), the Mahalanobis distance in units of its
size on the data. S are the training data's second moments about their mean, in units of the columns'
deviations and shrunk (`LevelSums.correlations`).

More features, and images: d(x) = (1/D Σ |x̂|³/3)^⅓, with x̂ = (x − μ)/deviation. It needs no correlations. Its
cube is the variance of infinitely many ReLU features at the input (arXiv 2010.02709).

Both are norms of h − μ, so that d³ is convex, and grows like δ³ along every ray on which the features move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.precision import without_autocast
from bitbayes.residual.sums import LevelSums
from bitbayes.tensors import TensorBundle


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
            matrix = vectors * (values.clamp_min(values[-1] * 1e-12) * d).rsqrt() / deviations[:, None]
            unit = matrix.abs().sum(0).amax()[None]
            matrix = matrix / unit
        else:
            inverse = (deviations * (3 * d) ** (1 / 3)).reciprocal()
            unit = inverse.amax(0, keepdim=True)
            # Every column keeps a positive weight, so that the distance grows along every ray.
            matrix = (inverse / unit).clamp_min(torch.finfo(dtype).tiny)
        mean = sums.mean.to(dtype, copy=True)
        rest = sums.mean - mean.double()
        mean, rest, matrix = (each.to(device, dtype) for each in (mean, rest, matrix))
        return cls(mean, rest, matrix, unit.to(device))

    def __call__(self, rows: Tensor) -> Tensor:
        """The distances (n,), in float64, of features as rows (n, d): finite up to 1e36; differentiable.

        >>> sums = LevelSums.of(torch.tensor([[0.0, 1.0], [2.0, 3.0]]).repeat(5, 1), correlated=False)
        >>> Distance.of(sums, torch.device("cpu"), torch.float32)(torch.tensor([[1.0, 5.0]])) ** 3
        tensor([4.5000], dtype=torch.float64)
        """
        return self.norm(rows.to(self.mean.dtype) - self.mean - self.rest)

    def norm(self, gaps: Tensor) -> Tensor:
        """The distance (n,) between points whose features differ by these gaps (n, d)."""
        # In float64, in which no square and no cube overflows.
        if self.matrix.dim() == 2:
            with without_autocast(gaps.device):
                found = gaps @ self.matrix
            size: Tensor = torch.linalg.vector_norm(found.double(), dim=1)
        else:
            size = torch.linalg.vector_norm((gaps * self.matrix).double(), 3, dim=1)
        return size * self.unit


def coordinates(sums: LevelSums, values: Tensor, *, centred: bool) -> Tensor:
    """Features (n, d) in float64, in coordinates whose 2-norm (3-norm, if uncorrelated) is the distance.

    Args:
        sums: of the training data.
        values: features, or their slopes along rays.
        centred: whether to take the mean of the data off; slopes have none.
    """
    values = values - sums.mean.to(values) if centred else values
    distance = Distance.of(sums, values.device, torch.float64)
    scaled = values @ distance.matrix if sums.correlated else values * distance.matrix
    return scaled * distance.unit


def norm_power(sums: LevelSums) -> float:
    """Which norm of its coordinates the distance is."""
    return 2.0 if sums.correlated else 3.0


def is_finite(sums: LevelSums) -> bool:
    """Whether no sum has overflowed."""
    return math.isfinite(float(sums.fourths.sum())) and bool(sums.products.isfinite().all())
