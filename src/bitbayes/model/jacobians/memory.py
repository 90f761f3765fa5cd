"""How many points can be differentiated at once within a limit of memory, and along how many directions."""

from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.model.jacobians.layers import Layer
from bitbayes.model.jacobians.working_precision import working_dtype
from bitbayes.model.loaders.batches import Inputs
from bitbayes.model.running.calls import call, call_hooks

# The memory that one call of `differentiate` may use. On a GPU it is a fraction of all memory, not of the
# free memory, so that the same data are always cut into the same parts.
CPU_PASS_BYTES = 2**29
GPU_PASS_FRACTION = 1 / 8
# How many outputs as large as the largest are alive at once in forward mode.
ALIVE = 8


def points_at_once(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs, directions: int) -> int:
    """How many points `differentiate` may be given at once, with that many directions for each point.

    One point is run through the model, and what `differentiate` would keep of it is counted: the outputs of
    all modules, their gradients in every direction, and the unfolded inputs of the largest convolution.
    """
    if not isinstance(inputs, Tensor):
        return 1  # a mapping is never cut
    modules = dict(model.named_modules())
    names = {layer.name for layer in layers}
    kept = unfolded = 0  # numbers for one point

    def count(name: str, _: Any, output: Any) -> None:
        nonlocal kept, unfolded
        if not isinstance(output, Tensor):
            return
        kept += output.numel() * (2 + directions * (name in names))
        module = modules[name]
        if isinstance(module, (nn.Conv1d, nn.Conv2d)):
            unfolded = max(unfolded, output.numel() // output.shape[1] * module.weight[0].numel())

    with call_hooks(modules, count), torch.no_grad():
        call(model, inputs[:1])
    # Derivatives that are formed as a whole.
    dense = sum(layer.size if layer.kind == "other" else len(layer.chosen or ()) for layer in layers)
    numbers = kept + 3 * unfolded + 2 * directions * dense
    return max(1, pass_bytes(inputs.device) // (numbers * working_dtype(model).itemsize))


def directions_at_once(model: nn.Module, inputs: Inputs) -> int:
    """Along how many directions in the parameters these points may be differentiated at once, forwards.

    Forward mode keeps nothing for later: for each direction the largest outputs of a few modules are alive.
    """
    largest = 1

    def look(_: str, __: Any, output: Any) -> None:
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output.numel())

    with call_hooks(dict(model.named_modules()), look), torch.no_grad():
        output = call(model, inputs)
    return max(1, pass_bytes(output.device) // (ALIVE * largest * working_dtype(model).itemsize))


def pass_bytes(device: torch.device) -> int:
    """The memory that one call may use on this device."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory * GPU_PASS_FRACTION)
    return CPU_PASS_BYTES
