"""Σ = σ₀²I: no posterior, but a Gaussian of one width around the trained weights (the paper's baseline)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.curvature import Curvature, NoCurvature
from bitbayes.errors import ArgumentError
from bitbayes.logits import CovarianceFactors
from bitbayes.posterior.base import Tensors, gaussian_noise


@dataclass(frozen=True)
class IsotropicPosterior(Tensors):
    """`like` (): carries device and dtype; `classes` k and `width` D."""

    like: Tensor
    classes: int
    width: int

    @classmethod
    def of(cls, curvature: Curvature) -> IsotropicPosterior:
        assert isinstance(curvature, NoCurvature)
        classes, width = (int(size) for size in curvature.shape)
        return cls(curvature.shape.new_ones(()), classes, width)

    def coordinates(self, features: Tensor) -> Tensor:
        """‖φ̃‖², (n, 1)."""
        return features.square().sum(1, keepdim=True)

    def spread(self, coordinates: Tensor, prior_variance: float) -> CovarianceFactors:
        variances = (coordinates * prior_variance).expand(-1, self.classes)  # (n, k)
        return CovarianceFactors(variances, None, torch.zeros_like(variances[:, 0]))

    def draw(self, n: int, prior_variance: float, generator: torch.Generator | None) -> Tensor:
        noise = gaussian_noise(self.like, n, self.classes, self.width, generator=generator)
        return noise * math.sqrt(prior_variance)

    def log_determinant(self, prior_variance: Tensor) -> Tensor:
        raise ArgumentError(
            "structure='isotropic' is no posterior and has no evidence: choose 'full', 'kron' or 'diag', "
            "or tune with objective='ood' or 'nll'"
        )
