"""Whether inputs, weights, features and logits are finite, and which of them is not."""

import math

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError
from bitbayes.model.loaders.batches import Batch, Inputs
from bitbayes.precision import prediction_dtype


def check_finite(batch: Batch, features: Tensor, logits: Tensor, model: nn.Module) -> None:
    """Raise if something is not finite, and say what: the input, the model's weights, or the features."""
    where, inputs = batch.name, batch.inputs
    tensors = {"": inputs} if isinstance(inputs, Tensor) else inputs
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and not finite(tensor):
            raise DataError(f"{where} holds NaN or infinity{f' in {name!r}' if name else ''}")
    if finite(features) and finite(logits):
        return
    bad = [name for name, parameter in model.named_parameters() if not finite(parameter)]
    if bad:
        raise DataError(
            f"the model's weights hold NaN or infinity: {', '.join(map(repr, bad))} (seen at {where})"
        )
    raise DataError(
        f"{where}: the network overflows; its features or logits are not finite in {features.dtype}. "
        "Use smaller inputs, or the model in float64"
    )


def finite(tensor: Tensor) -> bool:
    """Whether every number of the tensor is finite."""
    return bool(finite_sum(tensor)) or bool(tensor.isfinite().all())


def finite_sum(*values: Inputs) -> Tensor:
    """Whether the sum of all numbers is finite, (): it is not if a term is not. It may overflow by itself.

    One pass, and no mask.
    """
    tensors = [
        each for value in values for each in ([value] if isinstance(value, Tensor) else value.values())
    ]
    numbers = [each for each in tensors if isinstance(each, Tensor) and not _integers(each)]
    # Half precision in float32, because a sum of thousands of its numbers would overflow.
    sums = [each.sum(dtype=prediction_dtype(each.dtype)) for each in numbers]
    total = sums[-1] if sums else torch.zeros(())
    for more in sums[:-1]:
        total = total + more.to(total.device)
    return total.abs() < math.inf


def _integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())
