"""The normalised inputs x̂ of a norm layer, whose output is w ∘ x̂ + b."""

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm


def normalised(module: nn.Module, inputs: Tensor) -> Tensor:
    """x̂: what the module returns without its weight and bias. It has the shape of the inputs."""
    if isinstance(module, _BatchNorm):
        assert module.running_mean is not None and module.running_var is not None
        statistics = module.running_mean.to(inputs), module.running_var.to(inputs)
        return functional.batch_norm(inputs, *statistics, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return functional.group_norm(inputs, module.num_groups, eps=module.eps)
    assert isinstance(module, nn.LayerNorm)
    return functional.layer_norm(inputs, module.normalized_shape, eps=module.eps)


def features_by_positions(module: nn.Module, values: Tensor, lead: int) -> Tensor:
    """(…, features, T): one feature for each entry of the weight, and the T positions that share the weight.

    `lead`: how many axes (points, directions) come before those of the layer. They are kept.
    """
    if isinstance(module, nn.LayerNorm):
        inside = len(module.normalized_shape)
        values = values.flatten(values.dim() - inside)
        return values.flatten(lead, -2).mT if values.dim() > lead + 1 else values[..., None]
    return values.flatten(lead + 1) if values.dim() > lead + 1 else values[..., None]
