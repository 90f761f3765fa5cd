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
# How many a piece of the sum may hold.
NUMBERS = 2**22


@dataclass(frozen=True)
class FullCurvature:
    """`hessian` (c·D, c·D) over c contrasts of the logits and D features, contrast by contrast."""

    hessian: Tensor

    @classmethod
    def of(cls, features: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        """The curvature of some points: features (n, D), logits (n, k)."""
        c, width = likelihood.contrasts(logits.shape[1]).shape[1], features.shape[1]
        if c * width > WIDEST:
            raise ModelError(
                f"structure='full' would need a matrix of {c * width:,}² numbers, "
                f"{8 * (c * width) ** 2 / 1e9:.1f} GB: use structure='kron', or 'diag'"
            )
        blocks = precise(features).new_zeros(c, width, c, width)
        rows = max(1, NUMBERS // (c * c + width))
        for some, theirs in zip(
            *(torch.split(precise(each), rows) for each in (features, logits)), strict=True
        ):
            at_logits = likelihood.curvature(theirs)  # (n, c, c)
            for a in range(c):
                for b in range(a + 1):
                    blocks[a, :, b, :] += (some * at_logits[:, a, b, None]).T @ some
        for a in range(c):
            for b in range(a):
                blocks[b, :, a, :] = blocks[a, :, b, :].T
        return cls(blocks.reshape(c * width, c * width))

    def __add__(self, other: FullCurvature) -> FullCurvature:
        return FullCurvature(torch.add(self.hessian, other.hessian))
