"""diag H: exact on the diagonal, zero elsewhere. Σ = 1/(h + τ), weight by weight.

Last layer: hᵢ_d = Σₙ pₙᵢ(1 − pₙᵢ) φ̃ₙ_d². Any layer: h = Σₙ Σ_m J_nm², J the derivatives of Vᵀf, V Vᵀ = Λₙ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bitbayes.likelihoods import Likelihood
from bitbayes.logits import CovarianceFactors
from bitbayes.model import DenseJacobian, Head, Layer, LayerJacobian
from bitbayes.precision import to_float64
from bitbayes.structures.base import Curvature, Precision, WeightGaussian


@dataclass(frozen=True)
class DiagCurvature(Curvature):
    """`diagonal`: one entry for each weight, (k, D) of the last layer or (P,) of any layer."""

    structure = "diag"
    over_all_layers = True
    diagonal: Tensor

    @classmethod
    def bytes_needed(cls, outputs: int, width: int) -> int:
        return 8 * 8 * outputs * width

    @classmethod
    def of_features(cls, features: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        at_logits = likelihood.diagonal(to_float64(logits))  # (n, k)
        return cls(at_logits.T @ to_float64(features).square())

    @classmethod
    def of_jacobian(cls, jacobian: LayerJacobian) -> Self:
        if isinstance(jacobian, DenseJacobian):
            return cls(to_float64(jacobian.derivatives.square().sum((0, 1))))
        _, groups, _, o, _ = jacobian.gradients.shape
        total = to_float64(jacobian.inputs.new_zeros(groups, o, jacobian.inputs.shape[2]))
        if jacobian.few_positions:
            # (Σₜ gₜaₜ)² = Σ over pairs of gₜgₜ'·aₜaₜ'; for one position the square of a product.
            for part in jacobian.pair_chunks():
                total += to_float64(part.gradient_pairs().flatten(2) @ part.input_pairs().flatten(2).mT)
        else:
            for points, outputs in jacobian.chunks():
                squares = jacobian.part(points, outputs).dense().square_().sum((0, 1))
                total[:, outputs] += to_float64(squares.reshape(groups, -1, total.shape[2]))
        return cls(total.flatten())

    def head_gaussian(self, head: Head, differences: Tensor | None) -> DiagGaussian:
        return DiagGaussian(self.diagonal)

    def layer_gaussian(self, layer: Layer) -> DiagGaussian:
        return DiagGaussian(self.diagonal)


@dataclass(frozen=True)
class DiagGaussian(WeightGaussian):
    """`values` h, in the shape of the curvature's diagonal."""

    values: Tensor

    def precisions(self, tau: Precision) -> Tensor:
        return self.values + tau

    def to_weights(self, coordinates: Tensor) -> Tensor:
        return coordinates

    def coordinates(self, features: Tensor) -> Tensor:
        """Squared features, (n, D)."""
        return features.square()

    def covariance(self, coordinates: Tensor, tau: Precision) -> CovarianceFactors:
        variances = coordinates @ self.precisions(tau).reciprocal().to(coordinates).T  # (n, k)
        return CovarianceFactors(variances, None, torch.zeros_like(variances[:, 0]))

    def joint_covariance(self, features: Tensor, tau: Precision, outputs: int) -> Tensor:
        variances = self.precisions(tau).reciprocal()  # (k, D)
        features = features.to(variances)
        return (features * variances[:, None]) @ features.mT

    def whiten(self, combinations: Tensor, vectors: Tensor, tau: Precision) -> Tensor:
        variances = combinations.square().sum(1) @ self.precisions(tau).reciprocal()  # (s, D)
        return vectors * variances.rsqrt()[:, None]

    def as_head(self, outputs: int) -> DiagGaussian:
        return DiagGaussian(self.values.reshape(outputs, -1))

    def rotate(self, jacobian: LayerJacobian) -> LayerJacobian:
        return jacobian
