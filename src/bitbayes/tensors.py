"""A frozen bundle of tensors: what sums over data and decomposed Gaussians are made of."""

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from bitbayes.errors import DataError, ModelError


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
