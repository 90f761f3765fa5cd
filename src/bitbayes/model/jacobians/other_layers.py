"""Derivatives in the parameters of "other" layers: those that are neither matrix nor norm layers.

Nothing is known about such a layer, so the whole network is differentiated in its parameters, for each point.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacrev

from bitbayes.model.jacobians.layers import Layer
from bitbayes.model.loaders.batches import Inputs
from bitbayes.model.running.calls import as_logits, call


def parameter_jacobian(
    model: nn.Module, layer: Layer, tensors: dict[str, Tensor], inputs: Inputs, columns: Tensor
) -> Tensor:
    """The derivatives of Vᵀf in the layer's parameters, (n, c, P), where V = columns (n, k, c).

    `tensors`: the parameters and buffers that take the place of the model's own.
    """
    own = {name: tensors[name].detach() for name in layer.names}
    rest = {name: tensor.detach() for name, tensor in tensors.items() if name not in own}
    points = inputs if isinstance(inputs, Tensor) else _per_point(inputs, len(columns))
    shared = {} if isinstance(inputs, Tensor) else inputs

    def projected(parameters: dict[str, Tensor], point: Inputs, column: Tensor) -> Tensor:
        """Vᵀf of one point, (c,)."""
        if isinstance(point, Tensor):
            batch: Inputs = point[None]
        else:
            batch = {**shared, **{name: each[None] for name, each in point.items()}}
        return as_logits(call(model, batch, {**rest, **parameters}), 1)[0].to(column) @ column

    try:
        jacobians = torch.vmap(jacrev(projected), in_dims=(None, 0, 0))(own, points, columns)
    except Exception:
        # Many modules cannot be vmapped, and each fails with an error of its own. If the error has another
        # cause, it is raised again here.
        wanted = [tensors[name] for name in layer.names]
        rows = [
            _autograd_jacobian(projected(tensors, _point(points, i), column), wanted)
            for i, column in enumerate(columns)
        ]
        return torch.stack(rows) if rows else columns.new_zeros(0, columns.shape[2], layer.size)
    return torch.cat([jacobians[name].reshape(*columns[:, 0].shape, -1) for name in layer.names], dim=2)


def _per_point(inputs: Mapping[str, Any], n: int) -> dict[str, Tensor]:
    """The tensors with one row for each of the n points; flags, and masks for all points, are left out."""
    return {
        name: value
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.dim() and len(value) == n
    }


def _point(points: Inputs, i: int) -> Inputs:
    return points[i] if isinstance(points, Tensor) else {name: each[i] for name, each in points.items()}


def _autograd_jacobian(outputs: Tensor, parameters: list[Tensor]) -> Tensor:
    """The derivatives of outputs (c,) in all parameters, (c, P): one backward pass for each output."""
    passes = [
        torch.autograd.grad(each, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        for each in outputs
    ]
    return torch.stack([torch.cat([each.flatten() for each in gradients]) for gradients in passes])
