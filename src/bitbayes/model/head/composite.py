"""Composite heads: linear maps whose outputs the model processes further, but only linearly.

Some models take one of the outputs that their head gives for every token, the average of two heads, or an
interpolation of a head's map of pixels. All of these are linear, and treat every class alike. So the linear
maps are made to return, in place of their logits W·x + b, the columns (x, 1, logits): the model does to x and
to the 1 what it does to the logits, and the results are the features φ̃ with logits = [W, b]·φ̃. With
several maps each has columns of its own, which are 0 in what the others return:

    (W₁x₁ + b₁ + W₂x₂ + b₂)/2 = [W₁, b₁, W₂, b₂]·(x₁, 1, x₂, 1)/2.

What the model does need not be known. Whether it is linear is checked by this equation, and by a
factor: columns that are 64 times as large must give 64 times the output. A cap like 30·tanh(z/30), which
hardly changes small numbers, passes the equation and not the factor.
"""

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor, nn

from bitbayes.model.head.layout import Layout
from bitbayes.model.head.linear_maps import computes, feature_axis, sizes, weight_matrix
from bitbayes.model.loaders.batches import Inputs
from bitbayes.model.running.calls import call, replaced_outputs

# How many linear maps are tried at most, alone and together.
MOST_PARTS = 4
# A power of two, so that linear operations round alike with it and without it; the numbers of float16 end at
# 65,504. The error that is left is of sums that a GPU adds in varying order.
FACTOR, FACTOR_IN_HALF, FACTOR_ERROR = 2.0**6, 2.0**3, 2.0**-8


def composite_output(
    model: nn.Module, parts: Mapping[str, nn.Module], inputs: Inputs, factor: float = 1.0
) -> Tensor:
    """The model's output with D + k columns in place of its k classes: features φ̃ and logits.

    `factor`: what the columns are multiplied by.
    """
    widths = [d + bias for d, _, bias in map(sizes, parts.values())]
    starts = dict(zip(parts, accumulate([0, *widths]), strict=False))

    def columns(name: str, x: Tensor, logits: Tensor) -> Tensor:
        module = parts[name]
        axis, (d, _, bias) = feature_axis(module), sizes(module)
        x = x.to(torch.promote_types(x.dtype, logits.dtype))

        def constant(value: float, width: int) -> Tensor:
            shape = list(x.shape)
            shape[axis] = width
            return x.new_full(shape, value)

        before, after = starts[name], sum(widths) - starts[name] - d - bias
        pieces = [constant(0, before), x, constant(1, int(bias)), constant(0, after), logits.to(x)]
        joined = torch.cat(pieces, dim=axis)
        return joined if factor == 1 else factor * joined  # mostly it is 1: no copy then

    with replaced_outputs(parts, columns):
        return call(model, inputs)


def find_composite_head(
    model: nn.Module, inputs: Inputs, maps: Mapping[str, nn.Module], output: Tensor, name: str | None
) -> tuple[str, int, int, bool, Layout, tuple[str, ...]] | None:
    """The fields of the composite `Head` that gives the model's output, or None.

    Args:
        model: the model, which is run again for each guess.
        inputs: some inputs.
        maps: the linear maps that were called, by name, the last one first.
        output: the model's output.
        name: of a map that must be part of the head, or None.
    """
    for parts in _guesses(maps, output, name):
        modules = {key: maps[key] for key in parts}
        try:
            composite = composite_output(model, modules, inputs)
        except Exception:  # of any type: the model does not take that many columns
            continue
        _, k, _ = sizes(modules[parts[0]])
        weights = torch.cat([weight_matrix(each) for each in modules.values()], dim=1)  # (k, D)
        layout = _layout(tuple(output.shape), tuple(composite.shape), weights.shape[1] + k, k)
        if layout is None:
            continue
        rows = composite.movedim(layout.axis, -1).flatten(0, -2)
        features = rows[:, : weights.shape[1]]
        own = (output.unsqueeze(layout.axis) if layout.squeezed else output).movedim(layout.axis, -1)
        for logits in (rows[:, weights.shape[1] :], own.reshape(-1, k)):
            if not bool(computes(weights, None, features, logits)):
                break
        else:
            if _homogeneous(model, modules, inputs, composite):
                return "+".join(parts), weights.shape[1], k, False, layout, parts
    return None


def _homogeneous(model: nn.Module, parts: Mapping[str, nn.Module], inputs: Inputs, composite: Tensor) -> bool:
    """Whether larger columns give an output that is larger by the same factor; True if that overflows."""
    factor = FACTOR_IN_HALF if composite.dtype == torch.float16 else FACTOR
    scaled, expected = composite_output(model, parts, inputs, factor), factor * composite
    if not bool(scaled.isfinite().all()):
        return True
    return bool((scaled - expected).abs().amax() <= FACTOR_ERROR * expected.abs().amax())


def _guesses(maps: Mapping[str, nn.Module], output: Tensor, name: str | None) -> list[tuple[str, ...]]:
    """Maps that may form the head, all with k outputs: each alone, the last two, the last three …"""
    # Without the layers inside of adapters.
    outer = [key for key in maps if not any(key.startswith(f"{other}.") for other in maps)]
    found: list[tuple[str, ...]] = []
    for k in dict.fromkeys(sizes(maps[key])[1] for key in outer):
        if k != 1 and k not in output.shape[1:]:
            continue
        same = [key for key in outer if sizes(maps[key])[1] == k]
        if name in same:  # first
            same = [name, *(key for key in same if key != name)]
        found += [(key,) for key in same[:MOST_PARTS]]
        found += [tuple(reversed(same[:count])) for count in range(2, 1 + min(len(same), MOST_PARTS))]
    return [parts for parts in found if name is None or name in parts]


def _layout(shape: tuple[int, ...], composite: tuple[int, ...], width: int, k: int) -> Layout | None:
    """Where the columns are, given the shapes of the output with its k classes and with `width` columns."""
    for axis in range(1, len(composite)):
        before, after = composite[:axis], composite[axis + 1 :]
        if composite[axis] != width:
            continue
        if shape == (*before, k, *after):
            return Layout(len(composite) > 2, axis)
        if k == 1 and shape == (*before, *after):
            return Layout(len(composite) > 2, axis, squeezed=True)
    return None
