"""The paper's own Kronecker formula, as a structure of the library.

It is here so that tables can show the paper's formula beside the exact one. Once this module is imported,
`bb.Laplace(model, structure="paper-kron")` takes it. Over all layers the paper draws one label for each
point: `layers="all", structure="paper-kron", curvature=bb.Fisher()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bitbayes.structures import CURVATURES, KronCurvature, KronGaussian, Precision

# d = τ^damping. The paper damps each factor by √τ in its last-layer method (LLLA), and by τ over all layers
# (KFLA). So its two methods differ on a network that has one layer: by 67% in an example.
LLLA_DAMPING, KFLA_DAMPING = 0.5, 1.0


@dataclass(frozen=True)
class PaperKronCurvature(KronCurvature):
    """The sums of "kron", from which the paper makes another Gaussian."""

    structure = "paper-kron"

    def head_gaussian(self, head: Any, differences: Tensor | None) -> PaperKronGaussian:
        exact = self._without_bias(head.bias).head_gaussian(head, differences)
        return self._damped(exact, head.bias, LLLA_DAMPING)

    def layer_gaussian(self, layer: Any) -> PaperKronGaussian:
        exact = self._without_bias(layer.has_bias).layer_gaussian(layer)
        return self._damped(exact, layer.has_bias, KFLA_DAMPING)

    def _without_bias(self, bias: bool) -> KronCurvature:
        width = self.inputs.shape[-1] - bias
        return KronCurvature(self.outputs, self.inputs[..., :width, :width], self.count)

    def _damped(self, exact: KronGaussian, bias: bool, damping: float) -> PaperKronGaussian:
        """Return the paper's Gaussian, from the exact one over the weights without the biases."""
        input_vectors = exact.input_vectors
        if bias:  # a coordinate by itself
            weights, input_vectors = input_vectors, torch.zeros_like(self.inputs, dtype=torch.float64)
            input_vectors[..., :-1, :-1], input_vectors[..., -1, -1] = weights, 1
        return PaperKronGaussian(
            exact.output_values * self.count,
            exact.output_vectors,
            exact.input_values,
            input_vectors,
            exact.shift,
            self.count,
            bias,
            damping,
        )


@dataclass(frozen=True)
class PaperKronGaussian(KronGaussian):
    """Σ = (B/√N + dI)⁻¹ ⊗ (A/√N + dI)⁻¹ for the weights, (B + τI)⁻¹ for the biases; d is τ^`damping`.

    Damping each factor is not the prior: it shrinks the covariance (by half, where τ is large).
    `output_values` are those of B itself. The last coordinate of the inputs is the bias's, if there is one
    (`bias`), and has no input value.
    """

    count: Tensor
    bias: bool
    damping: float

    def precisions(self, tau: Precision) -> Tensor:
        root, damping = self.count.sqrt(), tau**self.damping
        outputs, inputs = self.output_values[..., :, None], self.input_values[..., None, :]
        weights = (outputs / root + damping) * (inputs / root + damping)
        # The square of a small τ leaves the range of numbers long before τ does.
        weights = weights.clamp_min(float(torch.finfo(weights.dtype).tiny ** 0.75))
        return torch.cat([weights, outputs + tau], dim=-1) if self.bias else weights


CURVATURES[PaperKronCurvature.structure] = PaperKronCurvature
