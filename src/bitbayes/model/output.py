"""What a model returns: a tensor of logits, or an object that holds one."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from bitbayes.errors import DataError, ModelError
from bitbayes.model.batches import Inputs


def call(model: nn.Module, inputs: Inputs, tensors: dict[str, Tensor] | None = None) -> Tensor:
    """The model's output tensor, or the `.logits` of the object that a Hugging Face model returns.

    `tensors`: parameters and buffers that replace the model's own in this call.
    """
    args, kwargs = _arguments(inputs)
    output = model(*args, **kwargs) if tensors is None else functional_call(model, tensors, args, kwargs)
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    output = getattr(output, "logits", output)
    if not isinstance(output, Tensor):
        raise ModelError(
            f"the model returned {type(output).__name__}: expected a tensor of logits, or an object with "
            "`.logits`. Say where the logits are: output='NAME', or a function that takes what the model "
            "returns"
        )
    return output


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: of a mapping, those under whole numbers and those under names."""
    if not isinstance(inputs, Mapping):
        return (inputs,), {}
    places = sorted(key for key in inputs if isinstance(key, int))
    if places != list(range(len(places))):
        raise DataError(
            f"the inputs are a mapping with the places {places}: expected {list(range(len(places)))}"
        )
    named = {key: value for key, value in inputs.items() if not isinstance(key, int)}
    return tuple(inputs[place] for place in places), named


def as_logits(output: Tensor, rows: int | None = None) -> Tensor:
    """The model's output as (n, k), where n = `rows` if given.

    Some models return one logit as (n,), or one point as (k,) or ().

    >>> import torch
    >>> one, many = torch.zeros(3), torch.zeros(3, 2)
    >>> as_logits(one).shape, as_logits(one, 3).shape, as_logits(one, 1).shape, as_logits(many, 3).shape
    (torch.Size([3, 1]), torch.Size([3, 1]), torch.Size([1, 3]), torch.Size([3, 2]))
    """
    if rows == 1 and output.dim() < 2:
        return output.reshape(1, -1)
    if output.dim() == 1:
        output = output[:, None]
    if output.dim() != 2 or (rows is not None and output.shape[0] != rows):
        given = "" if rows is None else f" for {rows} points"
        more = "; outputs with positions need layers='last'" if output.dim() > 2 else ""
        raise ModelError(f"the model's output has shape {tuple(output.shape)}{given}: expected (n, k){more}")
    return output
