"""The exact H and Σ = (H + τI)⁻¹, by the eigenvectors of H.

Last layer: H = Σₙ Λₙ ⊗ φ̃ₙφ̃ₙᵀ, the Hessian of the loss. All layers: H = Σₙ JₙᵀΛₙJₙ over all parameters at
once, the generalised Gauss-Newton matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bitbayes.errors import ModelError
from bitbayes.likelihoods import Likelihood
from bitbayes.logits import CovarianceFactors
from bitbayes.model import DenseJacobian, Head, Layer, LayerJacobian
from bitbayes.precision import to_float64
from bitbayes.structures.base import Curvature, Precision, WeightGaussian, eigen
from bitbayes.structures.grams import gram_root
from bitbayes.structures.kron import flush_rounding_noise, squared_components
from bitbayes.tensors import second_moments

# Rows of the largest dense matrix over all layers: 0.8 GB in float64, and derivatives take memory as well.
NETWORK_ROWS = 10_000
# The largest size, in numbers, of the points that are summed in one step.
NUMBERS_PER_STEP = 2**22


@dataclass(frozen=True)
class FullCurvature(Curvature):
    """`hessian`: (c·D, c·D) over c class differences and D features, or (P, P) over all parameters."""

    structure = "full"
    over_all_layers = True
    in_class_differences = True
    hessian: Tensor

    @classmethod
    def largest_side(cls, outputs: int, width: int) -> int:
        return max(1, outputs - 1) * width

    @classmethod
    def bytes_needed(cls, outputs: int, width: int) -> int:
        return 5 * 8 * cls.largest_side(outputs, width) ** 2

    @classmethod
    def of_features(cls, features: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        c, width = likelihood.differences(logits.shape[1]).shape[1], features.shape[1]
        blocks = to_float64(features).new_zeros(c, width, c, width)
        rows = max(1, NUMBERS_PER_STEP // (c * c + width))
        for some, theirs in zip(
            *(torch.split(to_float64(each), rows) for each in (features, logits)), strict=True
        ):
            at_logits = likelihood.curvature(theirs)  # (n, c, c)
            for a in range(c):
                for b in range(a + 1):
                    blocks[a, :, b, :] += (some * at_logits[:, a, b, None]).T @ some
        for a in range(c):
            for b in range(a):
                blocks[b, :, a, :] = blocks[a, :, b, :].T
        return cls(blocks.reshape(c * width, c * width))

    @classmethod
    def of_jacobian(cls, jacobian: LayerJacobian) -> Self:
        """Return the curvature over all parameters at some points, from the derivatives of Vᵀf."""
        return cls(second_moments(jacobian.dense().flatten(0, 1)))  # of (n·c, P)

    def squares(self) -> dict[str, Tensor]:
        return {"hessian": self.hessian.diagonal()}

    def head_gaussian(self, head: Head, differences: Tensor | None) -> FullHeadGaussian:
        values, vectors = eigen(self.hessian)
        assert differences is not None
        k, c = differences.shape
        shift = values.new_zeros((k - c) * head.width)
        return FullHeadGaussian(torch.cat([values, shift]), vectors, differences.to(vectors))

    def layer_gaussian(self, layer: Layer) -> FullGaussian:
        return FullGaussian(*eigen(self.hessian))


@dataclass(frozen=True)
class FullGaussian(WeightGaussian):
    """`values` h (P,) and `vectors` (P, P) of H over the parameters: precisions h + τ."""

    values: Tensor
    vectors: Tensor

    def precisions(self, tau: Precision) -> Tensor:
        return self.values + tau

    def to_weights(self, coordinates: Tensor) -> Tensor:
        return coordinates @ self.vectors.T

    def as_head(self, outputs: int) -> FullHeadGaussian:
        # Every logit is a direction of its own: no common shift is set apart.
        return FullHeadGaussian(self.values, self.vectors, torch.eye(outputs).to(self.vectors))

    def part(self, rows: slice) -> FullGaussian:
        """Return the Gaussian over some of the parameters given all others: its H is their block of H."""
        own = self.vectors[rows]
        return FullGaussian(*eigen((own * self.values) @ own.T))

    def rotate(self, jacobian: LayerJacobian) -> LayerJacobian:
        return DenseJacobian(flush_rounding_noise(jacobian.dense() @ self.vectors, 1))


@dataclass(frozen=True)
class FullHeadGaussian(FullGaussian):
    """`values` (r + D,), `vectors` (r, r) over class differences, r = c·D; `differences` (k, c).

    The last D values, all zero, belong to the common shift of all logits. A single logit has no such shift.
    """

    differences: Tensor

    def to_weights(self, coordinates: Tensor) -> Tensor:
        (k, c), r = self.differences.shape, len(self.vectors)
        own, shift = coordinates[:, :r], coordinates[:, r:]
        weights = self.differences @ (own @ self.vectors.T).reshape(len(own), c, -1)  # (s, k, D)
        return weights + shift[:, None] / k**0.5 if k > c else weights

    def coordinates(self, features: Tensor) -> Tensor:
        """One class difference: squared components in H's eigenbasis, (n, D). Several: the features.

        For several class differences there are r·c components, k times the size of a network's features.
        """
        one = self.differences.shape[1] == 1
        return squared_components(self.vectors, features) if one else features

    def covariance(self, coordinates: Tensor, tau: Precision) -> CovarianceFactors:
        (k, c), r = self.differences.shape, len(self.vectors)
        precisions, differences = self.precisions(tau)[:r], self.differences.to(coordinates)
        squares = coordinates if c == 1 else coordinates.square()
        # The variance of a common shift, (n,): ‖φ̃‖²σ₀²/k in each logit; one logit has none.
        shift = squares.sum(1) * ((k - c) / (k * tau))
        if c == 1:
            variances = squares @ precisions.reciprocal().to(squares)[:, None]  # (n, 1)
            return CovarianceFactors(variances, differences, shift)
        scaled = (self.vectors * precisions.rsqrt()).reshape(c, -1, r)  # (c, D, r)
        roots = to_float64(torch.einsum("nd,cdr->ncr", coordinates.to(scaled), scaled))
        if torch.compiler.is_compiling():  # ONNX has no Cholesky factor, and these are roots already
            factor = differences @ roots.to(coordinates)  # (n, k, r)
            return CovarianceFactors(torch.ones_like(factor[:, 0]), factor, shift)
        root = gram_root(roots @ roots.mT, 4 * c * torch.finfo(roots.dtype).eps).to(coordinates)
        factor = differences @ root  # (n, k, c)
        return CovarianceFactors(torch.ones_like(factor[:, 0]), factor, shift)


def check_affordable(layers: tuple[Layer, ...]) -> None:
    """Raise if a dense matrix over all parameters would need too much memory."""
    rows = sum(layer.size for layer in layers)
    if rows > NETWORK_ROWS:
        raise ModelError(
            f"structure='full' over all {rows:,} parameters would need a matrix of "
            f"{8 * rows**2 / 1e9:,.1f} GB: use structure='kron' or 'diag', or freeze "
            f"parameters (requires_grad_(False)) until {NETWORK_ROWS:,} are left"
        )
