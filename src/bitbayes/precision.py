"""Which arithmetic: sums and decompositions in float64 where the device has it, the rest as the model."""

import torch
from torch import Tensor


def precise(tensor: Tensor) -> Tensor:
    """In float64; on the CPU if the tensor's device has none (Apple's)."""
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.double()


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype of predictions: the model's, but at least float32.

    >>> working(torch.bfloat16), working(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)
