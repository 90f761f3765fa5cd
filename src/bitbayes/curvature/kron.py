"""H ≈ (Σₙ Λₙ) ⊗ (Σₙ φ̃ₙφ̃ₙᵀ) / N: exact for one point, and whenever Λ does not depend on φ̃."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from bitbayes.likelihood import Likelihood
from bitbayes.precision import precise


@dataclass(frozen=True)
class KronCurvature:
    """`outputs` (c, c) = Σ Λₙ in contrasts, `inputs` (D, D) = Σ φ̃ₙφ̃ₙᵀ, `count` () = N."""

    outputs: Tensor
    inputs: Tensor
    count: Tensor

    @classmethod
    def of(cls, features: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        """The curvature of some points: features (n, D), logits (n, k)."""
        # Precise before the product: float32 would leave nothing of eigenvalues below 1e-7 of the largest,
        # and these are what a wide prior is about.
        features = precise(features)
        inputs = features.T @ features
        outputs = likelihood.total_curvature(precise(logits))
        return cls(outputs, inputs, inputs.new_tensor(float(len(features))))

    def __add__(self, other: KronCurvature) -> KronCurvature:
        return KronCurvature(
            self.outputs + other.outputs, self.inputs + other.inputs, self.count + other.count
        )
