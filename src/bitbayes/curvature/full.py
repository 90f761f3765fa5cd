"""H = Σₙ Λₙ ⊗ φ̃ₙφ̃ₙᵀ: the exact Hessian of the loss in the weights of a linear head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bitbayes.errors import ModelError
from bitbayes.likelihood import Likelihood
from bitbayes.precision import precise

# A matrix of this width takes 3.2 GB in float64, and its eigendecomposition minutes.
WIDEST = 20_000


@dataclass(frozen=True)
class FullCurvature:
    """`hessian` (c·D, c·D) over c contrasts of the logits and D features, contrast by contrast."""

    hessian: Tensor

    @classmethod
    def of(cls, features: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        """The curvature of some points: features (n, D), logits (n, k)."""
        at_logits = likelihood.curvature(precise(logits)).to(features)  # (n, c, c)
        c, width = at_logits.shape[1], features.shape[1]
        if c * width > WIDEST:
            raise ModelError(
                f"structure='full' would need a matrix of {c * width:,}² numbers, "
                f"{8 * (c * width) ** 2 / 1e9:.1f} GB: use structure='kron', or 'diag'"
            )
        blocks = precise(features.new_empty(c, width, c, width))
        for a in range(c):
            for b in range(a + 1):
                block = precise((features * at_logits[:, a, b, None]).T @ features)
                blocks[a, :, b, :] = block
                blocks[b, :, a, :] = block.T
        return cls(blocks.reshape(c * width, c * width))

    def __add__(self, other: FullCurvature) -> FullCurvature:
        return FullCurvature(torch.add(self.hessian, other.hessian))
