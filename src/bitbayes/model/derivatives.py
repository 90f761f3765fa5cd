"""Derivatives of the outputs in every layer's parameters, point by point, without one gradient of a weight.

A direction is a vector v (k,) over the outputs of each point. One pass back from vᵀf to the layers' outputs
gives g for every layer and every point at once, since in eval mode no point sees another; with the layer's
inputs a this is all there is to know: the derivative in the weights is Σₜ gₜaₜᵀ, formed only where needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import jacrev

from bitbayes.errors import ModelError
from bitbayes.model.batches import Inputs, row_count
from bitbayes.model.head import call
from bitbayes.model.hooks import call_hooks
from bitbayes.model.layer_jacobians import DenseJacobian, LayerJacobian, MatrixJacobian
from bitbayes.model.layers import Layer
from bitbayes.model.normalised import by_parameter, normalised
from bitbayes.model.unfold import unfolded
from bitbayes.precision import working

# What a pass may keep: activations, their derivatives in every direction, and one layer's unfolded inputs. On
# a GPU an eighth of all its memory, not of what happens to be free: the same data should give the same parts.
CPU_BYTES, GPU_PART = 2**29, 8


@dataclass(frozen=True)
class LayerRecord:
    """One layer's part of a pass: inputs (n, …) and derivatives (n, c, …) of each of its calls.

    An "other" layer has no inputs, and its derivatives are those in the parameters, (n, c, P).
    """

    layer: Layer
    module: nn.Module
    inputs: list[Tensor]
    gradients: list[Tensor]

    def jacobian(self, factor: Tensor | None = None) -> LayerJacobian:
        """The derivatives, those of point n times factor[n]; the inputs' size is taken out of them first."""
        if self.layer.kind == "other":
            return DenseJacobian(_times(self.gradients[0], factor))
        if self.layer.kind == "norm":
            return DenseJacobian(_times(self._norm(), factor))
        inputs, gradients = self._matrix()
        if factor is not None:
            # a is divided by its largest entry and g takes it, so that neither a² nor g² can overflow.
            largest = _largest(inputs).clamp_min(torch.finfo(inputs.dtype).tiny)
            inputs = _times(inputs, largest.reciprocal())
            gradients = _times(gradients, largest * factor)
        return MatrixJacobian(inputs, gradients)

    def largest(self) -> Tensor:
        """A bound on the largest |g·a| of each point, (n,)."""
        if self.layer.kind != "matrix":
            return _largest(self.jacobian().dense())
        inputs, gradients = self._matrix()
        return _largest(inputs) * _largest(gradients)

    def _matrix(self) -> tuple[Tensor, Tensor]:
        """a (n, groups, i, T) and g (n, groups, c, o, T), over all positions of all calls."""
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

    def _norm(self) -> Tensor:
        """[Σₜ g ∘ x̂, Σₜ g], (n, c, P), summed over calls."""
        total: Tensor | None = None
        for inputs, gradients in zip(self.inputs, self.gradients, strict=True):
            g = by_parameter(self.module, gradients, 2)  # (n, c, features, T)
            parts = []
            if self.layer.has_weight:
                x = by_parameter(self.module, normalised(self.module, inputs), 1)  # (n, features, T)
                parts.append(torch.einsum("ncft,nft->ncf", g, x))
            if self.layer.has_bias:
                parts.append(g.sum(3))
            derivatives = torch.cat(parts, dim=2)
            total = derivatives if total is None else total + derivatives
        assert total is not None
        return total


def differentiate(
    model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs, directions: Callable[[Tensor], Tensor]
) -> tuple[Tensor, list[LayerRecord]]:
    """Logits f (n, k), and for every layer the derivatives of Vᵀf, V = directions(f) (n, k, c).

    In at least float32, whatever the model's own precision. Expects the model in eval mode and
    leaves it unchanged.
    """
    with torch.inference_mode(False), torch.enable_grad():
        tensors = substitutes(model, layers)
        inputs = upcast(inputs, working_dtype(model))
        with _recording(model, layers) as calls:
            output = as_logits(call(model, inputs, tensors), row_count(inputs)).to(working_dtype(model))
        logits = output.detach()
        columns = directions(logits).to(logits)  # (n, k, c)
        gradients = iter(_backward(output, [each for some in calls.values() for each in some], columns))
        recorded = []
        for layer in layers:
            module = model.get_submodule(layer.name)
            if layer.kind == "other":
                derivatives = _one_by_one(model, layer, tensors, inputs, columns)
                recorded.append(LayerRecord(layer, module, [], [derivatives]))
            else:
                if not calls[layer.name]:
                    raise ModelError(
                        f"the layer {layer.name!r} is called for some inputs and not for others: freeze it "
                        "(requires_grad_(False))"
                    )
                seen = [each.inputs for each in calls[layer.name]]
                recorded.append(LayerRecord(layer, module, seen, [next(gradients) for _ in seen]))
    return logits, recorded


def points_at_once(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs, directions: int) -> int:
    """How many points `differentiate` may be given, so that what it keeps of them stays within bounds."""
    kept = 0
    largest = 0
    names = {layer.name for layer in layers}

    def count(name: str) -> Callable[..., None]:
        def add(module: nn.Module, _: Any, output: Any) -> None:
            nonlocal kept, largest
            if not isinstance(output, Tensor):
                return
            kept += output.numel() * (2 + directions * (name in names))
            if isinstance(module, (nn.Conv1d, nn.Conv2d)):
                largest = max(largest, output.numel() // output.shape[1] * module.weight[0].numel())

        return add

    if not isinstance(inputs, Tensor):
        return 1  # never cut
    handles = [module.register_forward_hook(count(name)) for name, module in model.named_modules()]
    try:
        with torch.no_grad():
            call(model, inputs[:1])
    finally:
        for handle in handles:
            handle.remove()
    others = sum(layer.size for layer in layers if layer.kind == "other")
    numbers = kept + 3 * largest + 2 * directions * others
    limit = CPU_BYTES
    if inputs.device.type == "cuda":
        limit = torch.cuda.get_device_properties(inputs.device).total_memory // GPU_PART
    return max(1, limit // (numbers * working_dtype(model).itemsize))


def as_logits(output: Tensor, rows: int | None = None) -> Tensor:
    """(n, k), n = `rows` where that is known; one logit may come as (n,), one point as (k,) or ().

    >>> one, many = torch.zeros(3), torch.zeros(3, 2)
    >>> as_logits(one).shape, as_logits(one, 3).shape, as_logits(one, 1).shape, as_logits(many, 3).shape
    (torch.Size([3, 1]), torch.Size([3, 1]), torch.Size([1, 3]), torch.Size([3, 2]))
    """
    if rows == 1 and output.dim() < 2:
        return output.reshape(1, -1)
    if output.dim() == 1:
        output = output[:, None]
    if output.dim() != 2 or len(output) != (len(output) if rows is None else rows):
        given = "" if rows is None else f" for {rows} points"
        raise ModelError(f"the model's output has shape {tuple(output.shape)}{given}: expected (n, k)")
    return output


def working_dtype(model: nn.Module) -> torch.dtype:
    """The precision of derivatives: the parameters', but at least float32."""
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    dtype = torch.float32
    for kind in kinds:
        dtype = torch.promote_types(dtype, working(kind))
    return dtype


def substitutes(model: nn.Module, layers: tuple[Layer, ...]) -> dict[str, Tensor]:
    """The model's own tensors to be differentiated: apart from its graph, its flags and its `.grad`."""
    uncertain = {name for layer in layers for name in layer.names}
    dtype = working_dtype(model)
    tensors = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point():
            tensors[name] = tensor.detach().to(dtype).requires_grad_(name in uncertain)
    return tensors


def upcast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Inputs of the working precision, on which a graph can be built."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.clone() if value.is_inference() else value.detach()
        return value.to(dtype) if value.is_floating_point() and value.dtype.itemsize < 4 else value

    if isinstance(inputs, Tensor):
        return one(inputs)  # type: ignore[no-any-return]
    return {name: one(value) for name, value in inputs.items()}


def _times(tensor: Tensor, factor: Tensor | None) -> Tensor:
    return tensor if factor is None else tensor * factor.reshape(-1, *[1] * (tensor.dim() - 1))


def _largest(tensor: Tensor) -> Tensor:
    return tensor.flatten(1).abs().amax(1)


class Call(NamedTuple):
    """One call of a layer: its inputs, its output's place in the graph, and the output's shape."""

    inputs: Tensor
    edge: GradientEdge
    shape: torch.Size


@contextmanager
def _recording(model: nn.Module, layers: tuple[Layer, ...]) -> Iterator[dict[str, list[Call]]]:
    """Every call of every layer."""
    calls: dict[str, list[Call]] = {layer.name: [] for layer in layers if layer.kind != "other"}

    def remember(name: str, inputs: Tensor, output: Tensor) -> None:
        # The edge and not the tensor: a ReLU that works in place changes the tensor.
        if output.requires_grad:
            calls[name].append(Call(inputs.detach(), get_gradient_edge(output), output.shape))

    with call_hooks({name: model.get_submodule(name) for name in calls}, remember):
        yield calls


def _backward(output: Tensor, calls: list[Call], columns: Tensor) -> list[Tensor]:
    """For each call the derivatives (n, c, …), one pass back for each direction."""
    if not calls:
        return []
    edges, count = [each.edge for each in calls], columns.shape[2]
    passes = []
    for m in range(count):
        along = columns[:, :, m].contiguous()
        passes.append(
            torch.autograd.grad(output, edges, along, retain_graph=m + 1 < count, allow_unused=True)
        )
    gradients = []
    for each, call_gradients in zip(calls, zip(*passes, strict=True), strict=True):
        if call_gradients[0] is None:  # the network does not use what this call gave
            gradients.append(columns.new_zeros(each.shape[0], count, *each.shape[1:]))
        else:
            gradients.append(torch.stack(call_gradients, dim=1))
    return gradients


def _one_by_one(
    model: nn.Module, layer: Layer, tensors: dict[str, Tensor], inputs: Inputs, columns: Tensor
) -> Tensor:
    """The derivatives in a layer's parameters by `torch.func`, (n, c, P)."""
    own = {name: tensors[name].detach() for name in layer.names}
    rest = {name: tensor.detach() for name, tensor in tensors.items() if name not in own}
    points = inputs if isinstance(inputs, Tensor) else _with_rows(inputs, len(columns))
    whole = {} if isinstance(inputs, Tensor) else inputs

    def along(parameters: dict[str, Tensor], point: Inputs, column: Tensor) -> Tensor:
        if isinstance(point, Tensor):
            one: Inputs = point[None]
        else:
            one = {**whole, **{name: each[None] for name, each in point.items()}}
        return as_logits(call(model, one, {**rest, **parameters}), 1)[0].to(column) @ column  # (c,)

    try:
        jacobians = torch.vmap(jacrev(along), in_dims=(None, 0, 0))(own, points, columns)
    except (
        Exception
    ):  # many modules cannot be mapped, each in its own way; what else is wrong the loop raises
        wanted = [tensors[name] for name in layer.names]
        rows = [
            _gradients(along(tensors, _point(points, i), column), wanted) for i, column in enumerate(columns)
        ]
        return torch.stack(rows) if rows else columns.new_zeros(0, columns.shape[2], layer.size)
    return torch.cat([jacobians[name].reshape(*columns[:, 0].shape, -1) for name in layer.names], dim=2)


def _with_rows(inputs: Mapping[str, Any], n: int) -> dict[str, Tensor]:
    """What has a row for each point, and no flags, nor a mask for all of them."""
    return {
        name: value
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.dim() and len(value) == n
    }


def _point(points: Inputs, i: int) -> Inputs:
    return points[i] if isinstance(points, Tensor) else {name: each[i] for name, each in points.items()}


def _gradients(outputs: Tensor, parameters: list[Tensor]) -> Tensor:
    """The derivatives of outputs (c,) in all parameters, (c, P), by one pass back for each."""
    passes = [
        torch.autograd.grad(each, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        for each in outputs
    ]
    return torch.stack([torch.cat([each.flatten() for each in gradients]) for gradients in passes])
