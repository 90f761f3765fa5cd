"""Which arithmetic: sums and decompositions in float64 where the device has it, the rest as the model."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def precise(tensor: Tensor) -> Tensor:
    """In float64; on the CPU if the tensor's device has none (Apple's)."""
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.double()


def widest(dtype: torch.dtype) -> float:
    """The largest prior variance that predictions are made with: beyond, variances would leave the range.

    It is beyond all sense (1e28 in float32), and the limit of wider and wider priors is reached before.
    """
    return float(torch.finfo(dtype).max ** 0.75)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """The library's own arithmetic keeps its precision where a user's autocast lets the model lose some."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()  # also because a context would be in every trace


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype of predictions: the model's, but at least float32.

    >>> working(torch.bfloat16), working(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)
