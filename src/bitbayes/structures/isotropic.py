"""Σ = σ₀²I: no posterior, but a Gaussian of one width around the trained weights (the paper's baseline)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import Likelihood
from bitbayes.logits import CovarianceFactors
from bitbayes.model import Head
from bitbayes.structures.base import Curvature, Precision
from bitbayes.structures.diag import DiagGaussian


@dataclass(frozen=True)
class NoCurvature(Curvature):
    """H = 0: nothing is learned from the data."""

    structure = "isotropic"

    @classmethod
    def bytes_needed(cls, outputs: int, width: int) -> int:
        return 2 * 8 * outputs * width

    @classmethod
    def of_features(cls, features: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        return cls()

    def head_gaussian(self, head: Head, differences: Tensor | None) -> IsotropicGaussian:
        return IsotropicGaussian(torch.zeros(head.outputs, head.width, dtype=torch.float64))


@dataclass(frozen=True)
class IsotropicGaussian(DiagGaussian):
    """A diagonal H whose `values` (k, D) are all zero: the covariance depends only on the norm of φ̃."""

    def log_determinant(self, tau: Precision) -> Tensor:
        raise ArgumentError(
            "structure='isotropic' is no posterior and has no evidence: choose 'full', 'kron' or 'diag', "
            "or tune with objective='ood' or 'nll'"
        )

    def coordinates(self, features: Tensor) -> Tensor:
        """‖φ̃‖², (n, 1)."""
        return features.square().sum(1, keepdim=True)

    def covariance(self, coordinates: Tensor, tau: Precision) -> CovarianceFactors:
        variances = (coordinates / tau).expand(-1, len(self.values))  # (n, k)
        return CovarianceFactors(variances, None, torch.zeros_like(variances[:, 0]))
