"""Tensors: frozen bundles of them, of which sums over data and Gaussians are made, and a few sums."""

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.errors import DataError, ModelError
from bitbayes.precision import precise

# Columns of a product that are computed at once on a CPU, and the numbers in 64 bytes.
COLUMNS_AT_ONCE = 256
ALIGNED = 8


@dataclass(frozen=True)
class TensorBundle:
    """A frozen dataclass whose tensors move and change precision together."""

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Self:
        """The bundle on another device, or in another dtype; tensors that are so already are not copied."""
        moved = {name: value.to(device=device, dtype=dtype) for name, value in self.tensors().items()}
        return replace(self, **moved)

    def refuse_traced(self) -> Self:
        """Return itself; raise if its tensors are symbolic, from torch.export: they must not be kept."""
        if all(type(value) is Tensor for value in self.tensors().values()):
            return self
        raise ModelError(
            "a Laplace must have predicted something before it is traced: call it once, or `export`"
        )


def check_digits(whole: Tensor, left: Tensor, most: float) -> None:
    """Raise where a difference of sums of squares is less than 1/`most` of the sum it was taken from.

    The rounding errors of the whole sum are all that is left there, or what was taken out was not part of it.
    """
    if bool((left * most < whole).any()) or bool((left < 0).any()):
        raise DataError(
            f"these data cannot be taken out: they make up all but 1/{most:,.0f} of a sum, so that only "
            "rounding errors would be left, or they are not part of what was fitted. Fit again without them"
        )


def second_moments(rows: Tensor) -> Tensor:
    """Σₙ xₙxₙᵀ (d, d) of rows x (n, d), in float64.

    Precise before the product: float32 would leave nothing of eigenvalues below 1e-7 of the largest, and
    these are what a wide prior is about.
    """
    d = rows.shape[1]
    if rows.is_cuda:  # rows that begin at a multiple of 64 bytes; 2,048 features and a 1 would not
        rows = precise(functional.pad(rows, (0, -d % ALIGNED)) if d % ALIGNED else rows)
        return (rows.T @ rows)[:d, :d].contiguous()
    rows = precise(rows)
    if d <= COLUMNS_AT_ONCE:
        return rows.T @ rows
    total = rows.new_empty(d, d)
    for start in range(0, d, COLUMNS_AT_ONCE):  # one half is the other's mirror image
        part = rows[:, start : start + COLUMNS_AT_ONCE].T @ rows[:, start:]
        total[start : start + COLUMNS_AT_ONCE, start:] = part
        total[start:, start : start + COLUMNS_AT_ONCE] = part.T
    return total
