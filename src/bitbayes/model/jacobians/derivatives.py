"""Derivatives of a network's logits in the parameters of every layer, point by point.

What comes out: the logits f (n, k), and for every layer a `LayerRecord`. Its method `jacobian` gives the
derivatives of Vᵀf in the layer's parameters, where the c columns of V (k, c) are directions that the caller
chooses for each point. The steps:

1. One forward pass. For every call of a layer it records the input a and where the output z is in the graph.
2. One backward pass for each column v, from vᵀf to the outputs z. It gives g = ∂vᵀf/∂z for all layers and all
   points at once, because in eval mode the output for one point does not depend on the other points.
3. a and g determine the derivatives: those in the weights of a matrix layer are J = Σₜ gₜaₜᵀ, summed over the
   positions t. J is large, so it is formed later, and only where it is needed.

Layers of kind "other" take no part in this: `other_layers.py` differentiates them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from bitbayes.errors import ModelError
from bitbayes.model.jacobians.layer_jacobians import DenseJacobian, LayerJacobian, MatrixJacobian
from bitbayes.model.jacobians.layers import Layer
from bitbayes.model.jacobians.normalised import features_by_positions, normalised
from bitbayes.model.jacobians.other_layers import parameter_jacobian
from bitbayes.model.jacobians.unfold import unfolded
from bitbayes.model.jacobians.working_precision import substitutes, upcast, working_dtype
from bitbayes.model.loaders.batches import Inputs, row_count
from bitbayes.model.running.calls import as_logits, call, call_hooks


@dataclass(frozen=True)
class LayerRecord:
    """What was recorded of one layer: inputs a (n, …) and gradients g (n, c, …) for each of its calls.

    A layer of kind "other" has no inputs, and one gradient (n, c, P): the one in its parameters.
    """

    layer: Layer
    module: nn.Module
    inputs: list[Tensor]
    gradients: list[Tensor]

    def jacobian(self, factor: Tensor | None = None) -> LayerJacobian:
        """The derivatives of Vᵀf in the layer's uncertain parameters; those of point n times factor[n]."""
        whole, chosen = self._whole_jacobian(factor), self.layer.chosen
        return (
            whole if chosen is None else whole.columns(torch.tensor(chosen, device=self.gradients[0].device))
        )

    def _whole_jacobian(self, factor: Tensor | None) -> LayerJacobian:
        if self.layer.kind == "other":
            return DenseJacobian(_scale_points(self.gradients[0], factor))
        if self.layer.kind == "norm":
            return DenseJacobian(_scale_points(self._norm_jacobian(), factor))
        inputs, gradients = self._matrix_factors()
        if factor is not None:
            # a is divided by its largest entry and g is multiplied by it: neither a² nor g² can overflow.
            largest = _largest_per_point(inputs).clamp_min(torch.finfo(inputs.dtype).tiny)
            inputs = _scale_points(inputs, largest.reciprocal())
            gradients = _scale_points(gradients, largest * factor)
        return MatrixJacobian(inputs, gradients)

    def largest(self) -> Tensor:
        """max |g| · max |a| for each point, (n,); for kinds other than "matrix" the largest |derivative|."""
        if self.layer.kind != "matrix":
            return _largest_per_point(self.jacobian().dense())
        inputs, gradients = self._matrix_factors()
        return _largest_per_point(inputs) * _largest_per_point(gradients)

    def _matrix_factors(self) -> tuple[Tensor, Tensor]:
        """a (n, groups, i, T) and g (n, groups, c, o, T), where T counts the positions of all calls."""
        wanted = {"weight": self.layer.has_weight, "bias": self.layer.has_bias}
        inputs = [unfolded(self.module, each, **wanted) for each in self.inputs]
        gradients = [self._positions_last(each) for each in self.gradients]
        if len(inputs) == 1:
            return inputs[0], gradients[0]
        return torch.cat(inputs, dim=3), torch.cat(gradients, dim=4)

    def _positions_last(self, gradients: Tensor) -> Tensor:
        """(n, c, *output shape) → (n, groups, c, o, T)."""
        if isinstance(self.module, nn.Linear):
            rows = gradients.flatten(2, -2) if gradients.dim() > 3 else gradients[:, :, None]  # (n, c, T, o)
            return rows.mT[:, None]
        n, c, outputs, *_ = gradients.shape
        groups = self.layer.groups
        return gradients.reshape(n, c, groups, outputs // groups, -1).transpose(1, 2)

    def _norm_jacobian(self) -> Tensor:
        """[Σₜ gₜ ∘ x̂ₜ, Σₜ gₜ], (n, c, P), summed over the calls."""
        jacobians = []
        for inputs, gradients in zip(self.inputs, self.gradients, strict=True):
            g = features_by_positions(self.module, gradients, 2)  # (n, c, features, T)
            parts = []
            if self.layer.has_weight:
                x = features_by_positions(self.module, normalised(self.module, inputs), 1)  # (n, features, T)
                parts.append(torch.einsum("ncft,nft->ncf", g, x))
            if self.layer.has_bias:
                parts.append(g.sum(3))
            jacobians.append(torch.cat(parts, dim=2))
        return sum(jacobians[1:], jacobians[0])


def differentiate(
    model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs, directions: Callable[[Tensor], Tensor]
) -> tuple[Tensor, list[LayerRecord]]:
    """Logits f (n, k), and for every layer a record of the derivatives of Vᵀf, V = directions(f) (n, k, c).

    They are computed in float32 or, if the model's parameters are, in float64. The model must be in eval
    mode. It is not changed.
    """
    with torch.inference_mode(False), torch.enable_grad():
        tensors = substitutes(model, layers)
        inputs = upcast(inputs, working_dtype(model))
        with _recorded_calls(model, layers) as calls:
            output = as_logits(call(model, inputs, tensors), row_count(inputs)).to(working_dtype(model))
        logits = output.detach()
        columns = directions(logits).to(logits)  # (n, k, c)
        # In the order of the layers, and of the calls of each.
        gradients = iter(
            _output_gradients(output, [each for some in calls.values() for each in some], columns)
        )
        records = []
        for layer in layers:
            module = model.get_submodule(layer.name)
            if layer.kind == "other":
                derivatives = parameter_jacobian(model, layer, tensors, inputs, columns)
                records.append(LayerRecord(layer, module, [], [derivatives]))
                continue
            if not calls[layer.name]:
                raise ModelError(
                    f"the layer {layer.name!r} is called for some inputs and not for others: freeze it "
                    "(requires_grad_(False))"
                )
            layer_inputs = [each.inputs for each in calls[layer.name]]
            records.append(LayerRecord(layer, module, layer_inputs, [next(gradients) for _ in layer_inputs]))
    return logits, records


class LayerCall(NamedTuple):
    """One call of a layer: its input, and the place of its output in the autograd graph and its shape."""

    inputs: Tensor
    edge: GradientEdge
    shape: torch.Size


@contextmanager
def _recorded_calls(model: nn.Module, layers: tuple[Layer, ...]) -> Iterator[dict[str, list[LayerCall]]]:
    """The calls of every matrix and norm layer, by its name. The lists fill up while the model runs."""
    calls: dict[str, list[LayerCall]] = {layer.name: [] for layer in layers if layer.kind != "other"}

    def record(name: str, inputs: Tensor, output: Tensor) -> None:
        # The edge and not the tensor is kept, because a ReLU that works in place changes the tensor.
        if output.requires_grad:
            calls[name].append(LayerCall(inputs.detach(), get_gradient_edge(output), output.shape))

    with call_hooks({name: model.get_submodule(name) for name in calls}, record):
        yield calls


def _output_gradients(output: Tensor, calls: list[LayerCall], columns: Tensor) -> list[Tensor]:
    """g = ∂vᵀf/∂z at the output z of each call, (n, c, …): one backward pass for each of the c columns v."""
    if not calls:
        return []
    edges, count = [each.edge for each in calls], columns.shape[2]
    passes = []
    for m in range(count):
        column = columns[:, :, m].contiguous()
        passes.append(
            torch.autograd.grad(output, edges, column, retain_graph=m + 1 < count, allow_unused=True)
        )
    gradients = []
    for each, call_gradients in zip(calls, zip(*passes, strict=True), strict=True):
        if call_gradients[0] is None:  # the logits do not depend on this call
            gradients.append(columns.new_zeros(each.shape[0], count, *each.shape[1:]))
        else:
            gradients.append(torch.stack(call_gradients, dim=1))
    return gradients


def _scale_points(tensor: Tensor, factor: Tensor | None) -> Tensor:
    """tensor[n] · factor[n] for each point n."""
    return tensor if factor is None else tensor * factor.reshape(-1, *[1] * (tensor.dim() - 1))


def _largest_per_point(tensor: Tensor) -> Tensor:
    return tensor.flatten(1).abs().amax(1)
