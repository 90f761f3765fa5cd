"""Levels: places in a network whose features tell how far an input lies from the training data.

A level is the input of a layer. Its features are one row for each input of the network: pixels and tokens are
averaged, tokens over those that the attention mask counts. Of a pair of inputs, each has a row of its own.

`find_levels` chooses the levels of a network. The layers with weights are numbered 0, 1, …, M in the order of
their calls, M is the head. The levels are the inputs of the layers nearest to M/4, M/2 and 3M/4, and of the
head. If a flattening comes directly before a layer, its input is the level, because there pixels can be
averaged. Layers that are called twice, or whose input has no row for each input of the network, are left out.

If the network's own input can be measured, layer 0 is left out, too, because it sees little else, and so is
layer 1 if its features are averaged: what one layer finds, averaged over all pixels, says how bright an image
is, and hardly what it shows. What is far from the data there is often predicted well.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError, ModelError
from bitbayes.model.head.linear_maps import CONVOLUTIONS
from bitbayes.model.loaders.batches import Inputs, row_count
from bitbayes.model.loaders.sides import pair_for
from bitbayes.model.running.calls import call, input_hooks

# Where between the input and the head the levels are.
DEPTHS = (1 / 4, 1 / 2, 3 / 4)
# Layers whose inputs have their features on the second axis: (n, c, h, w).
CHANNELS_SECOND = (
    *CONVOLUTIONS,
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.Flatten),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
FEATURES_LAST = (nn.Linear, nn.LayerNorm)
MASK = "attention_mask"
# The names of levels that are no layer's: the network's input, the head's input, and the same features by
# their distance from the classes. A layer that is called so has another name.
INPUT, HEAD, CLASSES = RESERVED = "input", "head", "classes"


@dataclass(frozen=True)
class Level:
    """The input of the layer `layer`, with its features on the axis `axis`; `name` is for people."""

    name: str
    layer: str
    axis: int


@dataclass(frozen=True)
class Observer:
    """Looks at the levels of a pass.

    observe: gets what is known before the pass and the rows of the levels, (n, d) each, or (n, 2, d) of
        pairs. It returns what is kept with the batch, (n, …) or None.
    before: what is known before the pass.
    """

    levels: tuple[Level, ...]
    observe: Callable[[list[Tensor]], Tensor | None]
    before: tuple[Tensor, ...] = ()

    def look(self, rows: Sequence[Tensor]) -> Tensor | None:
        """What `observe` returns for the rows of the levels."""
        return self.observe([*self.before, *rows])


@dataclass(frozen=True)
class _Call:
    """A call of a module: `weights` says whether it has some, `rows` whether its input has n rows."""

    name: str
    module: nn.Module
    rows: bool
    weights: bool
    shape: tuple[int, ...]


@torch.no_grad()
def find_levels(network: nn.Module, inputs: Inputs, head: str | None, *, input_is_level: bool) -> list[Level]:
    """The levels of a network, the head's input last.

    Args:
        network: a private copy of the model, in eval mode.
        inputs: a few, to run it.
        head: the name of its last linear layer; None is the last layer with weights.
        input_is_level: whether the network's own input is a level already.
    """
    try:
        count = row_count(inputs)
    except DataError:  # such as lists of strings, which the model makes tensors of: how many is not known
        return []
    calls = _calls(network, inputs, count)
    weighted = [place for place, each in enumerate(calls) if each.weights]
    if head is not None:
        ends = [number for number, place in enumerate(weighted) if calls[place].name == head]
        weighted = weighted[: ends[-1] + 1] if ends else weighted
    if not weighted:
        return []
    *before, last = weighted
    names = [each.name for each in calls]
    seen = [_seen(calls, place) for place in before]

    def too_early(number: int) -> bool:
        return number == 0 or (number == 1 and len(seen[number].shape) > 2)

    able = [
        number
        for number, place in enumerate(before)
        if calls[place].rows and names.count(names[place]) == 1 and not (input_is_level and too_early(number))
    ]
    depth = len(before)
    wanted = [share * depth for share in DEPTHS] if able else []
    chosen = {min((abs(number - place), number) for number in able)[1] for place in wanted}
    measured = [seen[number] for number in sorted(chosen)]
    found = [_level_at(each.name, each.module, len(each.shape)) for each in measured]
    # The input of the first layer is that of the network.
    if calls[last].rows and not (depth == 0 and input_is_level):
        end = calls[last]
        found.append(Level(HEAD, end.name, level_axis(end.module, len(end.shape))))
    return found


@torch.no_grad()
def named_levels(network: nn.Module, layers: tuple[str, ...], inputs: Inputs) -> list[Level]:
    """The levels at the inputs of the layers of these names; `network` and `inputs` as for `find_levels`."""
    modules, dims = {each: network.get_submodule(each) for each in layers}, dict[str, int]()

    def note(name: str, value: Any) -> None:
        dims[name] = value.dim() if isinstance(value, Tensor) else 0

    with input_hooks(modules, note):
        call(network, inputs)
    return [_level_at(each, modules[each], dims.get(each, 0)) for each in layers]


def level_axis(module: nn.Module, dims: int) -> int:
    """The axis of the features in a layer's input of so many axes.

    For layers that are not known here it is the second of four or more, as in (n, c, h, w), else the last.
    """
    inside = getattr(module, "base_layer", module)
    if isinstance(inside, FEATURES_LAST):
        return -1
    return 1 if isinstance(inside, CHANNELS_SECOND) or dims >= 4 else -1


def _seen(calls: list[_Call], place: int) -> _Call:
    """The call whose input is the level of the one at this place: a flattening just before it, or itself."""
    this, before = calls[place], calls[max(0, place - 1)]
    once = sum(each.name == before.name for each in calls) == 1
    flattened = isinstance(before.module, nn.Flatten) and before.rows and len(before.shape) > 2 and once
    return before if flattened else this


def _level_at(layer: str, module: nn.Module, dims: int) -> Level:
    name = f"{layer} (layer)" if layer in RESERVED else layer
    return Level(name, layer, level_axis(module, dims))


def _calls(network: nn.Module, inputs: Inputs, count: int) -> list[_Call]:
    """All calls of modules that have weights, or flatten, in their order; `count` is that of the inputs."""
    found = list[_Call]()
    watched = {
        name: module for name, module in network.named_modules() if _has_weights(module) or _flattens(module)
    }
    # Of an adapter, what is inside sees the same input, or that of its own bottleneck.
    adapters = tuple(f"{name}." for name, module in watched.items() if _is_adapter(module))
    watched = {name: module for name, module in watched.items() if not name.startswith(adapters)}

    def note(name: str, value: Any) -> None:
        module = watched[name]
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        rows = _has_rows(value) and shape[0] == count
        found.append(_Call(name, module, rows, _has_weights(module), shape))

    with input_hooks(watched, note):
        call(network, inputs)
    return found


def _has_rows(value: Any) -> bool:
    """Whether a layer's input may have a row of features for each input of the network."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2


def _flattens(module: nn.Module) -> bool:
    return isinstance(module, nn.Flatten)


def _is_adapter(module: nn.Module) -> bool:
    """Whether the module adds to the result of a layer with weights, as those of peft do."""
    return isinstance(getattr(module, "base_layer", None), (nn.Linear, *CONVOLUTIONS))


def _has_weights(module: nn.Module) -> bool:
    """Whether the module multiplies its input by a matrix, its own or one that is made of other tensors."""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return False
    if isinstance(module, (nn.Linear, *CONVOLUTIONS)) or _is_adapter(module):
        return True
    return any(each.dim() >= 2 for each in module.parameters(recurse=False))


@contextmanager
def recorded_levels(
    network: nn.Module, levels: tuple[Level, ...], inputs: Inputs
) -> Iterator[Callable[[], list[Tensor]]]:
    """Record the rows (n, d) of the levels while the network runs; the result returns those of the last.

    Of a pair, for which the network runs twice, they are (n, 2, d).
    """
    sides = pair_for(network, inputs) or (inputs,)
    masks = [each.get(MASK) if isinstance(each, Mapping) else None for each in sides]
    runs: list[dict[str, Tensor]] = [{}] if len(sides) == 1 else []  # of a pair, each begins its own
    axes = {level.layer: level.axis for level in levels}

    def recorded() -> list[Tensor]:
        if missing := [each.layer for each in levels if not all(each.layer in rows for rows in runs)]:
            raise ModelError(f"the model does not call {missing}, whose inputs are levels of the residual")
        if len(runs) == 1:
            return [runs[0][each.layer] for each in levels]
        return [torch.stack([rows[each.layer] for rows in runs], 1) for each in levels]

    def record(layer: str, value: Any) -> None:
        if not _has_rows(value):
            raise ModelError(
                f"the layer {layer!r} does not see one row of numbers for each input: it is no level of the "
                "residual"
            )
        runs[-1][layer] = averaged(value, axes[layer], masks[len(runs) - 1])

    calls = {"": network} if levels and not runs else {}
    with (
        input_hooks(calls, lambda *_: runs.append({})),
        input_hooks({each: network.get_submodule(each) for each in axes}, record),
    ):
        yield recorded


def averaged(value: Tensor, axis: int, mask: Tensor | None = None) -> Tensor:
    """One row (n, d) for each input: the mean over all axes but the first and the features' `axis`.

    Args:
        value: (n, …), with features on `axis`.
        axis: 1 or −1.
        mask: (n, t), which positions count, if the features are on the last of three axes.

    >>> averaged(torch.arange(8.0).reshape(1, 2, 2, 2), axis=1)
    tensor([[1.5000, 5.5000]])
    >>> averaged(torch.arange(4.0).reshape(1, 2, 2), -1, torch.tensor([[1, 0]]))
    tensor([[0., 1.]])
    """
    if value.dim() == 2:
        return value.clone()  # a later layer may work in place
    if mask is not None and axis == -1 and value.shape[:2] == mask.shape and value.dim() == 3:
        share = mask.to(value) / mask.sum(1, keepdim=True).clamp_min(1).to(value)
        return (value * share[:, :, None]).sum(1)
    axes = list(range(2, value.dim())) if axis == 1 else list(range(1, value.dim() - 1))
    return value.mean(axes)


def run_levels(network: nn.Module, levels: tuple[Level, ...], inputs: Inputs) -> list[Tensor]:
    """The rows of the levels as in `recorded_levels`, from a run of the network if there are levels."""
    if not levels:
        return []
    with recorded_levels(network, levels, inputs) as recorded:
        call(network, inputs)
    return recorded()
