"""The layers of a network: which parameters are uncertain, and how each of them enters the output.

- A *matrix* layer (linear, convolution) gives z = W a + b at each of its T positions. With the bias's 1
  folded into a, its derivatives are sums over positions of outer products: Σₜ gₜ aₜᵀ, g the derivative at z.
- A *norm* layer gives z = w ∘ x̂ + b: the derivatives are Σₜ gₜ ∘ x̂ₜ and Σₜ gₜ.
- The parameters of every *other* module are differentiated one by one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bitbayes.errors import ModelError

# Exact types: a subclass may compute something else, or hand its weights to a fused function.
MATRIX = (nn.Linear, nn.Conv1d, nn.Conv2d)
NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True)
class Layer:
    """The trainable parameters of the module `name`: their `names` in the model, and their `shapes`.

    `kind`: "matrix", "norm" or "other". All of a layer's parameters make one vector of P numbers: for a
    matrix layer group by group, output by output, the inputs' weights and then the bias; otherwise one
    parameter after the other.
    """

    name: str
    kind: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    groups: int = 1

    @classmethod
    def read(cls, saved: dict[str, Any]) -> Layer:
        """From what `dataclasses.asdict` and JSON made of it."""
        shapes = tuple(tuple(int(size) for size in shape) for shape in saved["shapes"])
        return cls(saved["name"], saved["kind"], tuple(saved["names"]), shapes, int(saved["groups"]))

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def has_weight(self) -> bool:
        return any(name.rpartition(".")[2] == "weight" for name in self.names)

    @property
    def has_bias(self) -> bool:
        return any(name.rpartition(".")[2] == "bias" for name in self.names)

    def split(self, draws: Tensor) -> dict[str, Tensor]:
        """(s, P) → the parameters by name, each (s, …)."""
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


@dataclass(frozen=True)
class TrainableLayers:
    """All layers of a network with `outputs` logits whose parameters require gradients."""

    outputs: int
    layers: tuple[Layer, ...]

    @classmethod
    def read(cls, saved: dict[str, Any]) -> TrainableLayers:
        """From what `dataclasses.asdict` and JSON made of it."""
        return cls(int(saved["outputs"]), tuple(Layer.read(layer) for layer in saved["layers"]))


def find_layers(model: nn.Module) -> tuple[Layer, ...]:
    """The layers whose parameters require gradients, in the model's order; looks at types alone.

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
    if not layers:
        raise ModelError(
            "no parameter of the model requires a gradient, so none is uncertain: call requires_grad_() on "
            "those that should be"
        )
    return tuple(layers)


def tied_to(model: nn.Module, layer: Layer) -> list[str]:
    """Every other name under which the model holds a parameter of this layer."""
    own = {id(model.get_parameter(name)) for name in layer.names}
    named = model.named_parameters(remove_duplicate=False)
    return [name for name, parameter in named if id(parameter) in own and name not in layer.names]


def _kind(module: nn.Module) -> str:
    if type(module) in MATRIX:
        return "matrix"
    return "norm" if type(module) in NORM else "other"
