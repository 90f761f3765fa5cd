"""The levels of the residual's kernel: the input and, if asked for, the inputs of some hidden layers.

k(x) = k₀(x) + Σ_l k_l(h_l(x)), h_l the input of layer l, each kernel with the means and deviations of its own
level, and one variance σ² for all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.errors import ArgumentError, ModelError
from bitbayes.model import Batch, Inputs, call, model_device, private_copy, row_count
from bitbayes.model.loaders.batches import LABELS, move
from bitbayes.model.running.calls import recorded_inputs
from bitbayes.precision import prediction_dtype, to_float64
from bitbayes.residual.kernel import InputMoments, Kernel

# How many numbers to take the moments of at once; more on a GPU, to amortise kernel launches.
MOMENT_NUMBERS, GPU_MOMENT_NUMBERS = 2**20, 2**24


def levels(model: nn.Module, layers: tuple[str, ...], inputs: Inputs) -> list[Tensor]:
    """The inputs as rows, and the inputs of the named layers, from a run of the model in eval mode."""
    rows = as_rows(inputs)  # raises on inputs that have no levels
    if not layers:
        return [rows]
    # Copies, because a layer may work in place.
    network = private_copy(model)
    with recorded_inputs(network, layers, torch.clone) as recorded:
        call(network, move(inputs, model_device(network)))
    if missing := [name for name in layers if not recorded[name]]:
        raise ModelError(f"residual={layers!r}: the model does not call {missing}")
    return [rows, *(calls[-1] for calls in recorded.values())]


@torch.no_grad()
def moments_of(model: nn.Module, layers: tuple[str, ...], inputs: Inputs) -> InputMoments:
    """The moments of all levels side by side."""
    found = [as_rows(level) for level in levels(model, layers, inputs)]
    rows = found[0] if len(found) == 1 else torch.cat(found, dim=1)
    # A few rows at a time: the sums take some copies of them in float64.
    numbers = GPU_MOMENT_NUMBERS if rows.device.type == "cuda" else MOMENT_NUMBERS
    parts = torch.split(rows, max(1, numbers // max(1, rows.shape[1])))
    first, *others = (InputMoments.of(to_float64(part)) for part in parts)
    return sum(others, first)


@dataclass
class Residual:
    """The residual of a model, up to its two numbers: variance σ² and threshold.

    layers: the names of the hidden layers whose inputs enter the kernel, too.
    moments: of the training data, at all levels.
    """

    model: nn.Module
    layers: tuple[str, ...]
    moments: InputMoments
    # By the size, device and dtype of each level.
    _kernels: dict[tuple[tuple[int, torch.device, torch.dtype], ...], list[Kernel]] = field(
        default_factory=dict, init=False, repr=False
    )

    def root_kernel(self, inputs: Inputs) -> Tensor:
        """√Σ_l k_l, (n,) in float64."""
        rows = [as_rows(level) for level in levels(self.model, self.layers, inputs)]
        roots = [kernel.root(each) for kernel, each in zip(self._kernels_for(rows), rows, strict=True)]
        if len(roots) == 1:
            return roots[0]
        every = torch.stack(roots)
        largest = every.detach().amax(0).clamp_min(1e-100)  # in units of it no square overflows
        return largest * (every / largest).square().sum(0).sqrt()

    def attach(self, batch: Batch) -> Batch:
        """The batch with its √k(x), before the model runs: it may work in place on its inputs."""
        return replace(batch, root_kernel=self.root_kernel(batch.inputs))

    def _kernels_for(self, rows: list[Tensor]) -> list[Kernel]:
        """The kernel of each level, on the device and in the precision of its rows."""
        keys = tuple((each.shape[1], each.device, each.dtype) for each in rows)
        if (made := self._kernels.get(keys)) is None:
            with torch.inference_mode(False):  # what is cached may be differentiated through later
                dtypes = [prediction_dtype(each.dtype) for each in rows]
                parts = zip(self.split(rows), rows, dtypes, strict=True)
                made = [Kernel.of(own, each.device, dtype).refuse_traced() for own, each, dtype in parts]
            # Another thread may do this at the same time, so the cache is replaced, not changed.
            same_device = {key: value for key, value in self._kernels.items() if key[0][1] == keys[0][1]}
            self._kernels = {**same_device, keys: made}
        return made

    def split(self, found: list[Tensor]) -> list[InputMoments]:
        """The moments of each level."""
        return self.moments.split([math.prod(level.shape[1:]) for level in found])


def measurable(inputs: Any) -> bool:
    """Whether inputs can have a residual: floating-point numbers or uint8, in a tensor or in a mapping.

    >>> tokens, pixels = torch.ones(2, 5, dtype=torch.int64), torch.rand(2, 3, 8, 8)
    >>> measurable(pixels), measurable({"pixel_values": pixels, "ids": tokens}), measurable(tokens)
    (True, True, False)
    """
    return bool(_measured(inputs))


def as_rows(inputs: Inputs) -> Tensor:
    """(n, D): a tensor, or all that is measurable in a mapping side by side, in the order of its names.

    Raises on inputs for which a distance from the data means nothing, such as token ids.
    """
    parts = _measured(inputs)
    if not parts:
        kind = (
            f"of {inputs.dtype}"
            if isinstance(inputs, Tensor)
            else "in a mapping without floating-point numbers and without uint8"
            if isinstance(inputs, Mapping)
            else f"of type {type(inputs).__name__}"
        )
        raise ArgumentError(
            f"the residual measures how far an input lies from the data, which means nothing for inputs "
            f"{kind}: use residual=False"
        )
    flat = [each.flatten(1) if each.dim() > 1 else each[:, None] for each in parts]
    rows = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
    # Apple's devices have no float64, in which √k is.
    return rows.cpu() if rows.device.type == "mps" else rows


def _measured(inputs: Any) -> list[Tensor]:
    """The tensors that the residual uses: floating-point or uint8, with one row for each point."""
    if isinstance(inputs, Mapping):
        values = [inputs[name] for name in sorted(inputs, key=str) if name not in LABELS]
    else:
        values = [inputs]
    found = [each for each in values if isinstance(each, Tensor) and each.dim()]
    found = [each for each in found if each.is_floating_point() or each.dtype == torch.uint8]
    if isinstance(inputs, Mapping) and found:  # a tensor without a row for each point is the same for all
        # Not `len`, which a trace would take as fixed.
        found = [each for each in found if each.shape[0] == row_count(inputs)]
    return found
