"""The Mahalanobis distance to the nearest class (Lee et al. 2018), on the last features."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from bitbayes.baselines.detectors.base import Detector, steps
from bitbayes.errors import DataError


@dataclass(frozen=True)
class Mahalanobis(Detector):
    """−min_c (φ − μ_c)ᵀ Σ⁺ (φ − μ_c), with μ_c the mean of class c and Σ the covariance within classes.

    Σ⁺ is the pseudo-inverse: directions in which the training features of no class vary do not count. Nor do
    classes without a training point. With Σ⁺ = AAᵀ, where A (d, r) is `whitening`, these are squared
    Euclidean distances from (φ − `origin`)A to the `centres` (μ_c − `origin`)A.
    """

    origin: Tensor
    whitening: Tensor
    centres: Tensor

    title: ClassVar[str] = "Mahalanobis"

    @property
    def width(self) -> int:
        return len(self.origin)

    @classmethod
    def _fit(cls, features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Self:
        totals = torch.zeros_like(weight)  # (k, d)
        labels = labels.to(weight.device)
        for part, rows in steps(features):
            totals.index_add_(0, labels[part], rows)
        counts = labels.bincount(minlength=len(weight))
        means = totals / counts.clamp_min(1)[:, None]
        scatter = totals.new_zeros(totals.shape[1], totals.shape[1])
        for part, rows in steps(features):
            rows = rows - means[labels[part]]
            scatter += rows.T @ rows
        values, vectors = torch.linalg.eigh(scatter / len(features))
        # Below this an eigenvalue is rounding; the same bound as in a pseudo-inverse.
        kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
        if not bool(kept.any()):
            raise DataError(
                "no training feature varies within a class, so there are no Mahalanobis distances: give more "
                "than one training point a class"
            )
        whitening = vectors[:, kept] * values[kept].rsqrt()
        # An origin in the middle, so that the differences of squares in `_score` lose few digits.
        origin = totals.sum(0) / len(features)
        return cls(origin, whitening, (means[counts > 0] - origin) @ whitening)

    def _score(self, features: Tensor) -> Tensor:
        white = (features - self.origin) @ self.whitening  # (n, r)
        squares = white.square().sum(1, keepdim=True) + self.centres.square().sum(1)  # (n, classes)
        return -(squares - 2 * white @ self.centres.T).amin(1).clamp_min(0)
