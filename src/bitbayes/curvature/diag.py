"""diag H: hᵢ_d = Σₙ pₙᵢ(1 − pₙᵢ) φ̃ₙ_d², exact on the diagonal, zero elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from bitbayes.likelihood import Likelihood
from bitbayes.precision import precise


@dataclass(frozen=True)
class DiagCurvature:
    """`diagonal` (k, D): one entry for each weight."""

    diagonal: Tensor

    @classmethod
    def of(cls, features: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        """The curvature of some points: features (n, D), logits (n, k)."""
        at_logits = likelihood.diagonal(precise(logits))  # (n, k)
        return cls(at_logits.T @ precise(features).square())

    def __add__(self, other: DiagCurvature) -> DiagCurvature:
        return DiagCurvature(self.diagonal + other.diagonal)
