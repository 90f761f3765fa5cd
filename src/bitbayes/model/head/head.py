"""What a model returns, and its head: the last linear layer and the features that go into it.

The head is found by running the model once and looking for the linear map whose output *is* the model's
output. No naming convention is needed: `fc`, `head`, `classifier`, `score` and the last entry of a
`Sequential` are all found. If the model processes the outputs of linear maps further, but only linearly,
`composite.py` finds these maps. Any other output, such as a softmax, is refused.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError
from bitbayes.model.head.composite import find_composite_head
from bitbayes.model.head.layout import Layout
from bitbayes.model.head.linear_maps import (
    WAY_OUT,
    check_linear,
    drawn_parameters,
    equal_values,
    feature_axis,
    is_batch,
    is_linear_map,
    rows_of,
    sizes,
    weight_and_bias,
    weight_matrix,
)
from bitbayes.model.loaders.batches import Inputs
from bitbayes.model.loaders.sides import pair_for
from bitbayes.model.running.calls import call, call_hooks


@dataclass(frozen=True)
class Head:
    """The last linear layer: `outputs` logits from `inputs` features (and a bias).

    layout: where the logits are in the model's output.
    parts: the names of the linear maps of a composite head (`composite.py`), whose features are what the
        model makes of the inputs of these maps, side by side, each followed by a 1 for its bias. Empty if the
        output of the layer `name` is the model's.
    differences: whether a point is a pair of inputs, and its features and its logit are differences of
        theirs. The bias cancels, and is no part of the head then.
    width: the number of features, with the constant feature 1 of the bias.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool
    layout: Layout = field(default_factory=Layout)
    parts: tuple[str, ...] = ()
    differences: bool = False
    width: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", self.inputs + self.bias)

    @classmethod
    def read(cls, saved: dict[str, Any]) -> "Head":
        """From what `dataclasses.asdict` and JSON made of it."""
        layout, parts = Layout.read(saved["layout"]), tuple(saved["parts"])
        differences = bool(saved.get("differences", False))
        return cls(
            saved["name"], saved["inputs"], saved["outputs"], saved["bias"], layout, parts, differences
        )

    def of_differences(self, model: nn.Module) -> "Head":
        """This head for pairs of inputs, without its biases."""
        inputs = sum(sizes(each)[0] for each in self.modules(model).values())
        return replace(self, inputs=inputs, bias=False, differences=True)

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """The linear maps of the head, by name."""
        return {name: model.get_submodule(name) for name in self.parts or (self.name,)}

    def of_inputs(self, model: nn.Module) -> "Head":
        """This head of differences for one input, with its biases."""
        maps = self.modules(model).values()
        width = sum(map(_width, maps))
        bias = not self.parts and width > self.inputs
        return replace(self, inputs=width - bias, bias=bias, differences=False)

    def weights(self, model: nn.Module) -> Tensor:
        """μ (k, D) with logits = μ·φ̃, the bias of each linear map after its weights."""
        maps = self.modules(model).values()
        if self.differences:
            return torch.cat([weight_and_bias(each)[0] for each in maps], dim=1)
        return torch.cat([weight_matrix(each) for each in maps], dim=1)

    def features_and_constants(self, model: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What a composite head gives for one input, (n, D): its features, and those of its biases apart."""
        widths = [part for each in self.modules(model).values() for part in (sizes(each)[0], sizes(each)[2])]
        pieces = torch.split(rows, widths, dim=1)
        return torch.cat(pieces[::2], dim=1), torch.cat(pieces[1::2], dim=1)

    def parts_of_weights(self, model: nn.Module) -> list[Tensor]:
        """The weights and biases of its linear maps, one by one: a large head is not copied."""
        pairs = map(weight_and_bias, self.modules(model).values())
        return [each for pair in pairs for each in pair[: 2 - self.differences] if each is not None]

    def draws(self, model: nn.Module, noise: Tensor) -> dict[str, Tensor]:
        """The weights plus noise (s, k, D), by the names of the model's parameters."""
        modules = self.modules(model)
        widths = [sizes(each)[0] if self.differences else _width(each) for each in modules.values()]
        found: dict[str, Tensor] = {}
        for (name, module), part in zip(modules.items(), torch.split(noise, widths, dim=2), strict=True):
            if self.differences and sizes(module)[2]:  # the bias stays as it is
                part = torch.cat([part, torch.zeros_like(part[:, :, :1])], dim=2)
            draws = drawn_parameters(module, part)
            if draws is None:
                raise ModelError(
                    f"the head {name!r} makes its weight of other parameters (a weight norm?), which have no "
                    "draws: remove that first (torch.nn.utils.parametrize.remove_parametrizations)"
                )
            found |= {f"{name}.{key}" if name else key: each for key, each in draws.items()}
        return found


def _width(module: nn.Module) -> int:
    """The number of features of a linear map, with the 1 of its bias."""
    inputs, _, bias = sizes(module)
    return inputs + bias


def find_head(model: nn.Module, inputs: Inputs, name: str | None = None) -> Head:
    """The linear map whose output is the model's output. If `name` is given, it must be that one."""
    if (pair := pair_for(model, inputs)) is not None:
        return find_head(model, pair[0], name).of_differences(model)
    maps = {key: module for key, module in model.named_modules() if is_linear_map(module)}
    if name is not None and name not in maps:
        found = _list_last([repr(key) for key in maps]) or "none"
        raise ModelError(f"head={name!r} is no linear layer of the model: its linear layers are {found}")
    if not maps:
        raise ModelError(
            f"the model has no linear layer to put a posterior on: its modules are {_describe_modules(model)}"
        )

    calls: list[tuple[str, Tensor, Tensor]] = []
    with call_hooks(maps, lambda *seen: calls.append(seen)):
        output = call(model, inputs)
    direct = None
    for key, features, result in reversed(calls):
        direct = _direct_head(key, maps[key], features, result, output) if name in (None, key) else None
        if direct is not None:
            # One-token inputs hide pooling; try the composite head.
            if feature_axis(maps[key]) == 1 or result.dim() <= max(2, output.dim()):
                return direct
            break

    called = [key for key, _, _ in reversed(calls)]
    if (
        composite := find_composite_head(model, inputs, {key: maps[key] for key in called}, output, name)
    ) is not None:
        return Head(*composite)
    if direct is not None:
        return direct
    subject = f"the linear layer {name!r}" if name is not None else "any of the model's linear layers"
    shapes = _list_last([f"{key!r} -> {tuple(result.shape)}" for key, _, result in calls])
    way_out = f"If its head is not linear, {WAY_OUT}"
    if output.dim() > 2:
        way_out = "With positions in the output the head must be linear: logits that are capped are not"
    raise ModelError(
        f"the model's output, of shape {tuple(output.shape)}, is not the output of {subject} "
        f"({shapes or 'none was called'}). If the model ends in a softmax or a sigmoid, give the part that "
        f"returns plain logits. {way_out}"
    )


def _direct_head(
    name: str, module: nn.Module, features: Tensor, result: Tensor, output: Tensor
) -> Head | None:
    """The head, if its output is the model's; raises if it does not compute W·x + b."""
    if not equal_values(result, output):
        return None
    inputs, outputs, bias = sizes(module)
    axis = feature_axis(module)
    if not is_batch(module, features):
        raise ModelError(
            f"the head {name!r} sees features of shape {tuple(features.shape)}: expected (n, d), one vector "
            "for each input"
        )
    check_linear(name, module, rows_of(features, axis), rows_of(result, axis))
    _refuse_choices(name, outputs, result, output)
    return Head(name, inputs, outputs, bias, _direct_layout(axis, outputs, result, output))


def _refuse_choices(name: str, k: int, result: Tensor, output: Tensor) -> None:
    """Raise if one input has several rows of the head's logits side by side: all share the same weights."""
    rows = result.numel() // k
    if output.dim() == 2 and output.shape[1] != k and len(output) not in (rows, len(result)):
        raise ModelError(
            f"the model's output, of shape {tuple(output.shape)}, holds {rows // len(output)} results of the "
            f"head {name!r} for each input (a choice among several?), and a last layer has one: {WAY_OUT}"
        )


def _direct_layout(axis: int, k: int, result: Tensor, output: Tensor) -> Layout:
    """Where the logits are in the output, which holds the numbers of the head's result in their order."""
    shape, other = output.shape, 1 if axis == -1 else -1
    # One logit may lack its axis, or have it elsewhere.
    if k == 1 and shape == result.squeeze(axis).shape != shape[:1]:
        return Layout(positions=True, axis=axis, squeezed=True)
    if output.dim() <= 2:
        return Layout()
    if shape[axis] == k and (axis == -1 or len(output) == len(result)):
        return Layout(positions=True, axis=axis)
    if k == 1:
        squeezed = shape[other] != 1
        return Layout(positions=True, axis=axis if squeezed else other, squeezed=squeezed)
    return Layout()


def _list_last(items: list[str], most: int = 6) -> str:
    """The last items, which are nearest to the output, and how many came before them."""
    rest = f"{len(items) - most} others, " if len(items) > most else ""
    return rest + ", ".join(items[-most:])


def _describe_modules(model: nn.Module, most: int = 12) -> str:
    """The modules without children, at most `most` of them, for messages."""
    leaves = [
        f"{name or '(itself)'}: {type(module).__name__}"
        for name, module in model.named_modules()
        if not any(True for _ in module.children())
    ]
    rest = f", and {len(leaves) - most} more" if len(leaves) > most else ""
    return ", ".join(leaves[:most]) + rest
