"""Σ = (B ⊗ A/N + τI)⁻¹ in the eigenbasis of both factors: the prior is added to each product exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.curvature import KronCurvature
from bitbayes.logits import CovarianceFactors
from bitbayes.posterior.base import Tensors, eigen, gaussian_noise, squares


@dataclass(frozen=True)
class KronPosterior(Tensors):
    """B/N = U diag(β) Uᵀ over k logits, A = V diag(α) Vᵀ over D features.

    `output_vectors` U (k, k), whose last column is the common shift where there is one (k > 1: β = 0).
    `shifts`: 1 with a common shift, 0 without.
    """

    output_values: Tensor
    output_vectors: Tensor
    input_values: Tensor
    input_vectors: Tensor
    shifts: int

    @classmethod
    def of(cls, curvature: KronCurvature, contrasts: Tensor) -> KronPosterior:
        output_values, output_vectors, shifts = _outputs(curvature, contrasts)
        input_values, input_vectors = eigen(curvature.inputs)
        output_values = output_values / curvature.count
        return cls(output_values, output_vectors, input_values, input_vectors, shifts)

    def coordinates(self, features: Tensor) -> Tensor:
        """Squared coordinates of the features in A's eigenbasis, (D, n): `spread` is faster this way."""
        return squares(self.input_vectors.T @ features.T)

    def spread(self, coordinates: Tensor, prior_variance: float) -> CovarianceFactors:
        variances = (self._precisions(1 / prior_variance).reciprocal() @ coordinates).T  # (n, k)
        return _spread(variances, self.output_vectors, self.shifts)

    def draw(self, n: int, prior_variance: float, generator: torch.Generator | None) -> Tensor:
        precisions = self._precisions(1 / prior_variance)
        noise = gaussian_noise(precisions, n, *precisions.shape, generator=generator) * precisions.rsqrt()
        return self.output_vectors @ noise @ self.input_vectors.T

    def log_determinant(self, prior_variance: Tensor) -> Tensor:
        return self._precisions(1 / prior_variance).log().sum()

    def _precisions(self, precision: float | Tensor) -> Tensor:
        """βα + τ, (k, D)."""
        return self.output_values[:, None] * self.input_values + precision


@dataclass(frozen=True)
class PaperKronPosterior(Tensors):
    """The paper's: Σ = (B/√N + √τI)⁻¹ ⊗ (A/√N + √τI)⁻¹ for the weights, (B + τI)⁻¹ for the biases.

    Damping each factor is not the prior: it shrinks the covariance (by half, where τ is large). It is here
    so that tables can show the paper's formula beside the exact one.
    """

    output_values: Tensor
    output_vectors: Tensor
    input_values: Tensor
    input_vectors: Tensor
    count: Tensor
    shifts: int
    bias: bool

    @classmethod
    def of(cls, curvature: KronCurvature, contrasts: Tensor, bias: bool) -> PaperKronPosterior:
        output_values, output_vectors, shifts = _outputs(curvature, contrasts)
        inputs = curvature.inputs[:-1, :-1] if bias else curvature.inputs
        input_values, input_vectors = eigen(inputs)
        return cls(output_values, output_vectors, input_values, input_vectors, curvature.count, shifts, bias)

    def coordinates(self, features: Tensor) -> Tensor:
        """Squared coordinates of the features in A's eigenbasis and, last, of the bias's 1, (n, D)."""
        if not self.bias:
            return squares(features @ self.input_vectors)
        return squares(torch.cat([features[:, :-1] @ self.input_vectors, features[:, -1:]], dim=1))

    def spread(self, coordinates: Tensor, prior_variance: float) -> CovarianceFactors:
        variances = coordinates @ self._precisions(coordinates.new_tensor(prior_variance)).reciprocal().T
        return _spread(variances, self.output_vectors, self.shifts)

    def draw(self, n: int, prior_variance: float, generator: torch.Generator | None) -> Tensor:
        precisions = self._precisions(self.output_values.new_tensor(prior_variance))
        noise = gaussian_noise(precisions, n, *precisions.shape, generator=generator) * precisions.rsqrt()
        noise = self.output_vectors @ noise
        if not self.bias:
            return noise @ self.input_vectors.T
        return torch.cat([noise[:, :, :-1] @ self.input_vectors.T, noise[:, :, -1:]], dim=2)

    def log_determinant(self, prior_variance: Tensor) -> Tensor:
        return self._precisions(prior_variance).log().sum()

    def _precisions(self, prior_variance: Tensor) -> Tensor:
        """(k, D), the bias's column last."""
        root, damping = self.count.sqrt(), prior_variance.rsqrt()
        weights = (self.output_values / root + damping)[:, None] * (self.input_values / root + damping)
        if not self.bias:
            return weights
        return torch.cat([weights, (self.output_values + 1 / prior_variance)[:, None]], dim=1)


def _outputs(curvature: KronCurvature, contrasts: Tensor) -> tuple[Tensor, Tensor, int]:
    """Eigenvalues (k,) and eigenvectors (k, k) of Σ Λ over all logits: the contrasts', then the shift's."""
    values, vectors = eigen(curvature.outputs)
    k, c = contrasts.shape
    vectors = contrasts.to(vectors) @ vectors  # (k, c)
    if k == c:
        return values, vectors, 0
    shift = torch.full_like(vectors[:, :1], k**-0.5)
    return torch.cat([values, values.new_zeros(1)]), torch.cat([vectors, shift], dim=1), 1


def _spread(variances: Tensor, output_vectors: Tensor, shifts: int) -> CovarianceFactors:
    """Variances (n, k) along the columns of `output_vectors` (k, k), the shift's kept apart."""
    if not shifts:
        return CovarianceFactors(variances, output_vectors, torch.zeros_like(variances[:, 0]))
    return CovarianceFactors(variances[:, :-1], output_vectors[:, :-1], variances[:, -1] / variances.shape[1])
