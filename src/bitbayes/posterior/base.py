"""What every posterior shares: it is a frozen bundle of tensors."""

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from bitbayes.errors import ModelError
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

    def real(self) -> Self:
        """Itself; raises if its tensors are a trace's, which hold no numbers and must not outlive it."""
        if all(type(value) is Tensor for value in vars(self).values() if isinstance(value, Tensor)):
            return self
        raise ModelError(
            "a Laplace must have predicted something before it is traced: call it once, or `export`"
        )


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none below zero, and eigenvectors (columns) of a sum of squares, in float64."""
    values, vectors = torch.linalg.eigh(precise(matrix))
    # Rounding leaves −1e-16 of the largest where the truth is 0; the prior keeps the sum positive.
    return values.clamp_min(0), vectors


def squares(coordinates: Tensor) -> Tensor:
    """Squares, 0 where they are next to nothing: a dead unit's 1e-40 would slow a product down fivefold."""
    squared = coordinates.square()
    return squared * (squared > 1e8 * torch.finfo(squared.dtype).tiny)


def gaussian_noise(like: Tensor, *shape: int, generator: torch.Generator | None) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=like.dtype, device=like.device)


def gram_root(gram: Tensor, lift: float) -> Tensor:
    """L with L Lᵀ = gram (…, c, c), in float64.

    Zero features have zero variance, and rounding can leave less, which no Cholesky factor likes: the
    diagonal is lifted by `lift` times its mean.
    """
    gram = precise(gram)
    mean = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    lifts = (mean * lift + torch.finfo(gram.dtype).tiny)[..., None, None]
    root: Tensor = torch.linalg.cholesky(gram + lifts * torch.eye(gram.shape[-1]).to(gram))
    return root
