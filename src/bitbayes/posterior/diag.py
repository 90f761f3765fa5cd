"""Σ = 1/(h + τ), weight by weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.curvature import DiagCurvature
from bitbayes.logits import CovarianceFactors
from bitbayes.posterior.base import Tensors, gaussian_noise


@dataclass(frozen=True)
class DiagPosterior(Tensors):
    """`diagonal` h (k, D)."""

    diagonal: Tensor

    @classmethod
    def of(cls, curvature: DiagCurvature) -> DiagPosterior:
        return cls(curvature.diagonal)

    def coordinates(self, features: Tensor) -> Tensor:
        """Squared features, (n, D)."""
        return features.square()

    def spread(self, coordinates: Tensor, prior_variance: float) -> CovarianceFactors:
        variances = coordinates @ (self.diagonal + 1 / prior_variance).reciprocal().T  # (n, k)
        return CovarianceFactors(variances, None, torch.zeros_like(variances[:, 0]))

    def draw(self, n: int, prior_variance: float, generator: torch.Generator | None) -> Tensor:
        noise = gaussian_noise(self.diagonal, n, *self.diagonal.shape, generator=generator)
        return noise * (self.diagonal + 1 / prior_variance).rsqrt()

    def log_determinant(self, prior_variance: Tensor) -> Tensor:
        return (self.diagonal + 1 / prior_variance).log().sum()
