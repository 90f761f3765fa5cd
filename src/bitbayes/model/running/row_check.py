"""A check before any pass over the data: is the output for a row its own, and always the same?

A few rows are run together, and then one by one. Where the outputs differ, a prediction depends on its
neighbours in the batch (a normalisation by batch statistics, say), and nothing that is fitted has a meaning.
Rounding differs between batch sizes, too, so the tolerance is wide.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError, RandomModelWarning, level_of_the_caller
from bitbayes.model.loaders.batches import Inputs
from bitbayes.model.running.calls import call
from bitbayes.model.running.private_copy import STREAM, RandomStream

# How many rows are run.
CHECKED_ROWS = 4
# Numbers of each row's output that are compared at most: with positions there may be millions.
CHECKED_NUMBERS = 2**12
# Products in float32 on a GPU may have 10 bits, and quantised layers 7, with steps that depend on the batch.
FEW_BITS, QUANTISED = 2.0**-10, 2.0**-7


@dataclass(frozen=True)
class SomeRows:
    """A few rows of a batch: `count` of them, in `inputs`; `shared` are keys of numbers for all rows."""

    inputs: Inputs
    count: int
    shared: frozenset[Any] = frozenset()

    @classmethod
    def of(cls, inputs: Inputs, n: int) -> "SomeRows":
        """Rows that are spread over a batch of n points. There are none if it is not known what a row is.

        A graph's edges, say, are places among its nodes. If only some tensors were cut, others would point at
        rows that are not there, after which a GPU computes nothing more.
        """
        parts = list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]
        if not all(isinstance(each, Tensor) and (not each.dim() or len(each) == n) for each in parts):
            return cls(inputs, 0)
        places = sorted({round(place) for place in torch.linspace(0, max(0, n - 1), CHECKED_ROWS).tolist()})
        if isinstance(inputs, Tensor):
            return cls(inputs[places], len(places))
        shared = frozenset(key for key, each in inputs.items() if not each.dim())
        some = {key: each if key in shared else each[places] for key, each in inputs.items()}
        return cls(some, len(places), shared)

    def part(self, rows: slice) -> Inputs:
        """Copies of some of the rows: the model may change its inputs."""
        if not isinstance(self.inputs, Mapping):
            return self.inputs[rows].clone()
        return {key: each if key in self.shared else each[rows].clone() for key, each in self.inputs.items()}


@torch.no_grad()
def check_rows(network: nn.Module, rows: SomeRows) -> bool:
    """Raise if the output for a row depends on other rows, and warn if it is not always the same.

    Returns whether it is. From here on the network has random numbers of its own only if it has drawn some.
    Models that do not take so few rows are not checked.

    Args:
        network: a private copy of the model, with `SideEffects.any_of(model)`.
        rows: some rows of a batch.
    """
    first, again = (_outputs(network, rows, rows.count) for _ in range(2))
    if first is None or again is None:
        return True
    stream: RandomStream | None = network.__dict__.get(STREAM)
    if stream is not None and not stream.used:
        del network.__dict__[STREAM]
    if _differ(network, first, again).any():
        warnings.warn(
            "two runs of the model on the same inputs give different outputs, also in eval mode: dropout "
            "that is always on, or noise? What is fitted, and each prediction, then depends on random "
            "numbers. Switch them off in eval mode (nn.Dropout does)",
            RandomModelWarning,
            stacklevel=level_of_the_caller(),
        )
        return False
    for size, way in ((1, "one by one"), (2, "in pairs")):  # batch statistics need two rows at least
        parts = _outputs(network, rows, size) if rows.count > size else None
        if parts is not None:
            _refuse_mixing(network, first, parts, way)
            break
    return True


def _refuse_mixing(network: nn.Module, together: Tensor, parts: Tensor, way: str) -> None:
    # Half of the rows: a choice between experts, say, may change by rounding alone, but not for most rows.
    if 2 * int(_differ(network, together, parts).sum()) < len(together):
        return
    gap = float((together - parts).abs().max())
    raise ModelError(
        f"the output for a row depends on the other rows of its batch: between {len(together)} rows together "
        f"and {way} it differs by up to {gap:.2g}. So would each prediction. Look for statistics over the "
        "batch (z - z.mean(0), a BatchNorm in training mode or without running statistics), and give a model "
        "that treats each row by itself"
    )


def _outputs(network: nn.Module, rows: SomeRows, size: int) -> Tensor | None:
    """The output (count, …) of the rows, `size` of them at a time; None if the model does not take them."""
    if not rows.count:
        return None
    try:
        parts = []
        for start in range(0, rows.count, size):
            output = call(network, rows.part(slice(start, start + size)))
            flat = output.reshape(min(size, rows.count - start), -1)
            parts.append(flat[:, :: max(1, flat.shape[1] // CHECKED_NUMBERS)].clone())
        found = torch.cat(parts)
    except Exception:  # of any type: it is the model's own
        return None
    return found if bool(found.isfinite().all()) else None


def _differ(network: nn.Module, one: Tensor, other: Tensor) -> Tensor:
    """Which rows of two outputs differ by more than rounding, (n,)."""
    if one.shape != other.shape:  # several lengths, say: nothing is known
        return torch.zeros(len(one), dtype=torch.bool)
    gap = (one - other).abs().amax(1)
    return gap > 3 * rounding(network, one) * one.abs().amax()


def rounding(network: nn.Module, output: Tensor) -> float:
    """What rounding may change an output by, relative to the largest: √ε of the coarsest dtype in use."""
    tensors = (*network.parameters(), output)
    epsilon = max(torch.finfo(each.dtype).eps for each in tensors if each.is_floating_point())
    device = output.device.type
    if torch.is_autocast_enabled(device):
        epsilon = max(epsilon, torch.finfo(torch.get_autocast_dtype(device)).eps)
    if device != "cpu" or torch.get_float32_matmul_precision() != "highest":
        epsilon = max(epsilon, FEW_BITS) if epsilon >= torch.finfo(torch.float32).eps else epsilon
    if any(type(each).__module__.startswith("torch.ao.") for each in network.modules()):
        epsilon = max(epsilon, QUANTISED)
    return math.sqrt(epsilon)
