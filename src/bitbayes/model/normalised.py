"""A norm layer's x̂: the module without its own weight and bias."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm


def normalised(module: nn.Module, inputs: Tensor) -> Tensor:
    """x̂, of the shape of the inputs."""
    if isinstance(module, _BatchNorm):
        assert module.running_mean is not None and module.running_var is not None
        statistics = module.running_mean.to(inputs), module.running_var.to(inputs)
        return functional.batch_norm(inputs, *statistics, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return functional.group_norm(inputs, module.num_groups, eps=module.eps)
    assert isinstance(module, nn.LayerNorm)
    return functional.layer_norm(inputs, module.normalized_shape, eps=module.eps)


def by_parameter(module: nn.Module, values: Tensor, lead: int) -> Tensor:
    """(…, features, T): the axes of the weight made one, those it is shared over made the last.

    `lead`: the number of axes (points, directions) before the layer's own.
    """
    if isinstance(module, nn.LayerNorm):
        inside = len(module.normalized_shape)
        values = values.flatten(values.dim() - inside)
        return values.flatten(lead, -2).mT if values.dim() > lead + 1 else values[..., None]
    return values.flatten(lead + 1) if values.dim() > lead + 1 else values[..., None]
