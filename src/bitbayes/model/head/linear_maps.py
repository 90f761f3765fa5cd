"""Modules that are linear maps: linear layers, 1×1 convolutions, and adapters around one of these.

An adapter (LoRA and its relatives, in peft) is a module whose `base_layer` is such a layer. What it
computes is still W·x + b, with a weight that is made of several parameters: the effective weight.
"""

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from bitbayes.errors import ModelError
from bitbayes.model.running.private_copy import private_copy
from bitbayes.precision import to_float64

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# The error that W·x + b may have in bfloat16, where W, x and the sum are each off by up to 2⁻⁸; and in
# float64, where a sum of up to 2¹⁷ terms is off by 2⁻³⁶ of their size.
LINEAR_RELATIVE_ERROR, DOUBLE_RELATIVE_ERROR = 2.0**-6, 2.0**-36
# Points at which a linear map is compared with W·x + b: a wrong one is wrong at most points.
CHECKED_ROWS = 1024
# With these structures any parameters will do. The default, "kron", needs linear layers.
WAY_OUT = (
    "freeze all but the head (requires_grad_(False)) and use layers='all' with structure='full', or 'diag' "
    "if that is too large"
)
# Numbers that a check of W·x + b computes at once: in float64 the weight of 100,000 classes takes gigabytes.
CHECKED_NUMBERS = 2**24


def is_linear_map(module: nn.Module) -> bool:
    """Whether the module's type says that it computes W·x + b, at each position by itself.

    >>> is_linear_map(nn.Linear(2, 3)), is_linear_map(nn.Conv2d(2, 3, 1)), is_linear_map(nn.Conv2d(2, 3, 3))
    (True, True, False)
    """
    if isinstance(module, nn.Linear):
        return True
    if isinstance(module, CONVOLUTIONS):
        sizes = {*module.kernel_size, *module.stride, module.groups}
        return sizes == {1} and module.padding in ("same", "valid", (0,) * len(module.kernel_size))
    inside = getattr(module, "base_layer", None)
    return isinstance(inside, nn.Module) and is_linear_map(inside)


def base_layer(module: nn.Module) -> tuple[str, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d]:
    """The layer inside of all adapters, and its name in the module: "" for one without adapters."""
    if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
        return "", module
    name, layer = base_layer(module.get_submodule("base_layer"))
    return f"base_layer.{name}".rstrip("."), layer


def sizes(module: nn.Module) -> tuple[int, int, bool]:
    """The number of inputs, of outputs, and whether there is a bias."""
    _, layer = base_layer(module)
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features, layer.bias is not None
    return layer.in_channels, layer.out_channels, layer.bias is not None


def feature_axis(module: nn.Module) -> int:
    """The axis of the features in the module's inputs, and of the logits in its outputs."""
    return -1 if isinstance(base_layer(module)[1], nn.Linear) else 1


def is_batch(module: nn.Module, x: Tensor) -> bool:
    """Whether x, an input of the module, has an axis for the points of a batch."""
    _, layer = base_layer(module)
    return x.dim() >= 2 if isinstance(layer, nn.Linear) else x.dim() == 2 + len(layer.kernel_size)


def rows_of(values: Tensor, axis: int) -> Tensor:
    """(n, …, d, …) → (N, d): one row for each position, or (n, d) as it is."""
    if values.dim() == 2:
        return values
    if axis == 1 and math.prod(values.shape[2:]) == 1:  # pooled to one position
        return values.flatten(1)
    return values.movedim(axis, -1).flatten(0, -2)


def weight_matrix(module: nn.Module) -> Tensor:
    """[W, b] (k, D): what the module computes is [W, b]·(x, 1). Without a bias it is W."""
    weight, bias = weight_and_bias(module)
    return weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)


def weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """W (k, d) and b (k,): the layer's own, or what an adapter makes of it."""
    if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
        return module.weight.flatten(1), module.bias
    outputs = _at_unit_vectors(module, {})
    return (outputs[1:] - outputs[0]).T, outputs[0] if sizes(module)[2] else None


@torch.no_grad()
def _at_unit_vectors(module: nn.Module, tensors: dict[str, Tensor]) -> Tensor:
    """The module's output at 0 and at the unit vectors, (1 + d, k); `tensors` replace its own."""
    _, layer = base_layer(module)
    inputs, outputs, _ = sizes(module)
    dtype = layer.weight.dtype if layer.weight.is_floating_point() else torch.float32
    probe = torch.cat([torch.zeros(1, inputs), torch.eye(inputs)]).to(layer.weight.device, dtype)
    shape = probe.shape if isinstance(layer, nn.Linear) else (*probe.shape, *[1] * len(layer.kernel_size))
    found: Tensor = functional_call(private_copy(module), tensors, (probe.reshape(shape),))
    return found.reshape(1 + inputs, outputs)


def drawn_parameters(module: nn.Module, noise: Tensor) -> dict[str, Tensor] | None:
    """The module's weights plus noise (s, k, D), by their names in it. None if the weight is no parameter.

    An adapter adds something to its layer's weight, so the noise is added to that weight. Where it does
    something else with it (a norm, say), no parameter has such draws.
    """
    name, layer = base_layer(module)
    if not isinstance(layer.weight, nn.Parameter) or not layer.weight.is_floating_point():
        return None
    prefix, inputs = f"{name}." if name else "", sizes(module)[0]
    noise = noise.to(layer.weight.dtype)
    draws = {f"{prefix}weight": layer.weight + noise[:, :, :inputs].reshape(-1, *layer.weight.shape)}
    if layer.bias is not None:
        draws[f"{prefix}bias"] = layer.bias + noise[:, :, inputs]
    if name:
        weight = (layer.weight + torch.ones_like(layer.weight)).detach()
        moved = _at_unit_vectors(module, {f"{prefix}weight": weight}) - _at_unit_vectors(module, {})
        size = 1 + weight.abs().amax()
        if bool(((moved[1:] - 1).abs() > LINEAR_RELATIVE_ERROR * size).any()):
            return None
    return draws


def computes(weight: Tensor, bias: Tensor | None, x: Tensor, result: Tensor) -> Tensor:
    """Whether the result (N, k) is W·x + b, up to rounding, of W (k, d), b (k,) and x (N, d): a tensor ().

    The rounding is relative to Σ |W||x| + |b|, because the terms may cancel. For float32 it is that of
    bfloat16, too: a GPU may multiply with 8 bits.
    """
    double = weight.dtype == x.dtype == result.dtype == torch.float64
    error = DOUBLE_RELATIVE_ERROR if double else LINEAR_RELATIVE_ERROR
    x, correct = to_float64(x.detach()), []
    outputs = max(1, CHECKED_NUMBERS // max(x.shape))  # at once
    for start in range(0, len(weight), outputs):
        part = slice(start, start + outputs)
        w, f = to_float64(weight.detach()[part]), to_float64(result.detach()[:, part])
        b = None if bias is None else to_float64(bias.detach()[part])
        gap = (f - functional.linear(x, w, b)).abs()
        size = functional.linear(x.abs(), w.abs(), None if b is None else b.abs())
        correct.append((gap <= error * size).all())
    return torch.stack(correct).all()


def check_linear(name: str, module: nn.Module, x: Tensor, result: Tensor) -> None:
    """Raise if the module does not compute W·x + b: a subclass or a hook may compute something else."""
    if not bool(result.isfinite().all()):
        return  # callers check this, and say what is not finite
    few = slice(None, None, max(1, len(x) // CHECKED_ROWS))
    if not bool(computes(*weight_and_bias(module), x[few], result[few])):
        raise ModelError(
            f"the head {name!r} ({type(module).__name__}) does not compute W·x + b of its own weights: "
            f"{WAY_OUT}, or give the model a plain nn.Linear"
        )


def equal_values(result: Tensor, output: Tensor) -> bool | Tensor:
    """Whether both hold the same numbers in the same order, whatever their shapes.

    A tensor () if it depends on their values.
    """
    if result is output:
        return True
    if result.numel() != output.numel():
        return False
    a, b = result.detach().flatten(), output.detach().flatten()
    if a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.stride() == b.stride():
        return True  # the same numbers in memory, in another shape
    return ((a == b) | (a.isnan() & b.isnan())).all()
