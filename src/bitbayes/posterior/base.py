"""What every posterior shares: it is a frozen bundle of tensors."""

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from bitbayes.precision import precise


@dataclass(frozen=True)
class Tensors:
    """A frozen dataclass whose tensors move and change precision together."""

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        moved = {
            field.name: value.to(device=device, dtype=dtype)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none below zero, and eigenvectors (columns) of a sum of squares, in float64."""
    values, vectors = torch.linalg.eigh(precise(matrix))
    # Rounding leaves −1e-16 of the largest where the truth is 0; the prior keeps the sum positive.
    return values.clamp_min(0), vectors


def gaussian_noise(like: Tensor, *shape: int, generator: torch.Generator | None) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=like.dtype, device=like.device)
