"""The layers of a network: which parameters are uncertain, and how the output depends on them.

There are three kinds. z is a layer's output, g the derivative of a logit in z, t a position in a sequence or
an image.

- A *matrix* layer (linear, convolution): zₜ = W aₜ + b. With a 1 appended to aₜ for the bias, the derivatives
  in the parameters are Σₜ gₜaₜᵀ.
- A *norm* layer: zₜ = w ∘ x̂ₜ + b, x̂ the normalised inputs. The derivatives are Σₜ gₜ ∘ x̂ₜ and Σₜ gₜ.
- Every *other* layer: no formula is known, and its parameters are differentiated through the whole network.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bitbayes.errors import ModelError
from bitbayes.model.head.layout import Layout

# Exact types, without their subclasses: a subclass may compute something else, or give its weights to a fused
# function.
MATRIX_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d)
NORM_TYPES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True)
class Layer:
    """The trainable parameters of the module `name`: their `names` in the model, and their `shapes`.

    `kind` is "matrix", "norm" or "other". All parameters of a layer form one vector of P numbers. In a matrix
    layer they are ordered by group, then by output, and for each output its weights come before its bias. In
    all other layers one parameter follows the other.

    `chosen`: the places in this vector of those that are uncertain, in ascending order; None is all.
    """

    name: str
    kind: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    groups: int = 1
    chosen: tuple[int, ...] | None = None

    @classmethod
    def read(cls, saved: dict[str, Any]) -> Layer:
        """From a dictionary that `dataclasses.asdict` made, and that may have been through JSON."""
        shapes = tuple(tuple(int(size) for size in shape) for shape in saved["shapes"])
        chosen = saved.get("chosen")
        places = None if chosen is None else tuple(map(int, chosen))
        return cls(saved["name"], saved["kind"], tuple(saved["names"]), shapes, int(saved["groups"]), places)

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def uncertain(self) -> int:
        """How many of the parameters are uncertain."""
        return self.size if self.chosen is None else len(self.chosen)

    @property
    def has_weight(self) -> bool:
        return any(name.rpartition(".")[2] == "weight" for name in self.names)

    @property
    def has_bias(self) -> bool:
        return any(name.rpartition(".")[2] == "bias" for name in self.names)

    def split(self, draws: Tensor) -> dict[str, Tensor]:
        """(s, P), or (s, chosen) → the parameters by name, each (s, …). What was not chosen is 0."""
        if self.chosen is not None:
            whole = draws.new_zeros(len(draws), self.size)
            whole[:, torch.tensor(self.chosen, device=draws.device)] = draws
            draws = whole
        if self.kind == "matrix":
            rows = draws.reshape(len(draws), self.shapes[0][0], -1)  # (s, outputs, columns)
            columns = [math.prod(shape[1:]) for shape in self.shapes]
            parts: Sequence[Tensor] = torch.split(rows, columns, dim=2)
        else:
            parts = torch.split(draws, [math.prod(shape) for shape in self.shapes], dim=1)
        return {
            name: part.reshape(len(draws), *shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def join(self, parameters: Iterable[Tensor]) -> Tensor:
        """The parameters, each (s, …), → (s, P), or (s, chosen); what `split` has split."""
        outputs = self.shapes[0][0] if self.kind == "matrix" else 1  # each has its weights, then its bias
        whole = torch.cat([each.reshape(len(each), outputs, -1) for each in parameters], dim=2).flatten(1)
        return whole if self.chosen is None else whole[:, torch.tensor(self.chosen, device=whole.device)]


@dataclass(frozen=True)
class TrainableLayers:
    """All layers of a network with `outputs` logits that have uncertain parameters."""

    outputs: int
    layers: tuple[Layer, ...]

    @property
    def is_subnetwork(self) -> bool:
        """Whether single weights were chosen."""
        return any(layer.chosen is not None for layer in self.layers)

    @property
    def layout(self) -> Layout:
        """Where the logits are in the model's output: one row for each input."""
        return Layout()

    @classmethod
    def read(cls, saved: dict[str, Any]) -> TrainableLayers:
        """From what `dataclasses.asdict` and JSON made of it."""
        return cls(int(saved["outputs"]), tuple(Layer.read(layer) for layer in saved["layers"]))


def find_layers(model: nn.Module, only: tuple[str, ...] = ()) -> tuple[Layer, ...]:
    """The layers with parameters that require gradients, in the order of `model.named_modules()`.

    `only`: names of modules, whose layers alone are taken; () takes all.

    The kind of a layer follows from its type alone. `verify_layers` checks it by running the model.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    >>> [(layer.name, layer.kind, layer.size) for layer in find_layers(model)]
    [('0', 'matrix', 36), ('1', 'norm', 8)]
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ModelError(
            "a scripted or traced model (torch.jit) cannot be differentiated layer by layer: give the "
            "nn.Module itself, that it was made from"
        )
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    seen: set[int] = set()
    layers = []
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise ModelError(
                f"the layer {name!r} ({type(module).__name__}) has no running statistics, so that every "
                "output depends on the whole batch: there are no derivatives for one point"
            )
        own = {
            key: parameter
            for key, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad and id(parameter) not in seen
        }
        seen.update(map(id, own.values()))
        if not own:
            continue
        plain = set(module._parameters) <= {"weight", "bias"}
        tied = any(uses[id(parameter)] > 1 for parameter in own.values())
        kind = _kind(module) if plain and not tied else "other"
        names = tuple(f"{name}.{key}" if name else key for key in own)
        shapes = tuple(tuple(parameter.shape) for parameter in own.values())
        groups = int(getattr(module, "groups", 1)) if kind == "matrix" else 1
        layers.append(Layer(name, kind, names, shapes, groups))
    if only:
        layers = [each for each in layers if any(_is_within(each.name, name) for name in only)]
        for name in only:
            if not any(_is_within(each.name, name) for each in layers):
                raise ModelError(f"layers={only!r}: {name!r} has no parameter that requires a gradient")
    if not layers:
        raise ModelError(
            "no parameter of the model requires a gradient, so none is uncertain: call requires_grad_() on "
            "those that should be"
        )
    return tuple(layers)


def _is_within(layer: str, module: str) -> bool:
    """Whether a layer is this module, or a part of it."""
    return layer == module or layer.startswith(f"{module}.")


def tied_to(model: nn.Module, layer: Layer) -> list[str]:
    """The other names of this layer's parameters, where modules share them (tied weights)."""
    own = {id(model.get_parameter(name)) for name in layer.names}
    named = model.named_parameters(remove_duplicate=False)
    return [name for name, parameter in named if id(parameter) in own and name not in layer.names]


def _kind(module: nn.Module) -> str:
    if type(module) in MATRIX_TYPES:
        return "matrix"
    return "norm" if type(module) in NORM_TYPES else "other"
