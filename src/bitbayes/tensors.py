"""Frozen bundles of tensors, the base of sums over data and of Gaussians; and helpers for sums."""

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.errors import DataError, ModelError
from bitbayes.precision import to_float64

# Columns of a product that are computed at once; and how many float64 numbers 64 bytes hold.
COLUMNS_AT_ONCE, GPU_COLUMNS_AT_ONCE = 256, 512
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

    def to_float64(self) -> Self:
        """The bundle in float64; tensors that are so already are not copied."""
        return replace(self, **{name: to_float64(value) for name, value in self.tensors().items()})

    def refuse_traced(self) -> Self:
        """Return itself; raise if its tensors are symbolic, from torch.export: they must not be cached."""
        if all(type(value) is Tensor for value in self.tensors().values()):
            return self
        raise ModelError(
            "a Laplace must have predicted something before it is traced: call it once, or `export`"
        )


def check_cancellation(whole: Tensor, left: Tensor, max_ratio: float) -> None:
    """Raise where a difference of sums of squares is less than 1/`max_ratio` of the sum it was taken from.

    There only rounding errors are left of the sum, or what was taken out was not part of it.
    """
    if bool((left * max_ratio < whole).any()) or bool((left < 0).any()):
        raise DataError(
            f"these data cannot be taken out: they make up all but 1/{max_ratio:,.0f} of a sum, so that only "
            "rounding errors would be left, or they are not part of what was fitted. Fit again without them"
        )


def second_moments(rows: Tensor) -> Tensor:
    """Σₙ xₙxₙᵀ (d, d) of rows x (n, d), in float64.

    The rows are converted before the product: float32 would lose eigenvalues below 1e-7 of the largest, and
    these matter under a wide prior.
    """
    d, step = rows.shape[1], COLUMNS_AT_ONCE
    if rows.is_cuda:
        step = GPU_COLUMNS_AT_ONCE
        if d % ALIGNED:  # align rows to 64 bytes: 2,048 features and a 1 are not
            rows = functional.pad(rows, (0, -d % ALIGNED))
    rows = to_float64(rows)
    total = rows.new_empty(d, d)
    for start in range(0, d, step):  # the product is symmetric: one half is copied
        part = (rows[:, start : start + step].T @ rows[:, start:])[: d - start, : d - start]
        total[start : start + step, start:] = part
        total[start:, start : start + step] = part.T
    return total
