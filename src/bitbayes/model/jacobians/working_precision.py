"""The precision in which derivatives are computed: a model's tensors and inputs, in at least float32."""

from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.model.jacobians.layers import Layer
from bitbayes.model.loaders.batches import Inputs


def working_dtype(model: nn.Module) -> torch.dtype:
    """The widest dtype of the model's parameters, but at least float32."""
    dtype = torch.float32
    for parameter in model.parameters():
        if parameter.is_floating_point():
            dtype = torch.promote_types(dtype, parameter.dtype)
    return dtype


def substitutes(model: nn.Module, layers: tuple[Layer, ...]) -> dict[str, Tensor]:
    """The model's parameters and buffers in the working dtype, by name; those of `layers` require gradients.

    They are detached: using them changes neither the model's flags nor its `.grad`.
    """
    uncertain = {name for layer in layers for name in layer.names}
    dtype = working_dtype(model)
    tensors = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point():
            tensors[name] = tensor.detach().to(dtype).requires_grad_(name in uncertain)
    return tensors


def upcast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """The inputs, those of less than 32 bits in `dtype`, as tensors that autograd accepts."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        # autograd does not accept tensors that were made in inference mode: a clone is an ordinary tensor.
        value = value.clone() if value.is_inference() else value.detach()
        return value.to(dtype) if value.is_floating_point() and value.dtype.itemsize < 4 else value

    if isinstance(inputs, Tensor):
        return one(inputs)  # type: ignore[no-any-return]
    return {name: one(value) for name, value in inputs.items()}
