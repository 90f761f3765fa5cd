"""Which arithmetic: sums and decompositions in float64 where the device has it, the rest as the model."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float64; on the CPU if its device has no float64 (Apple's)."""
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.double()


def most_precise(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """float64, or `dtype` where the device has no float64 (Apple's)."""
    return dtype if device.type == "mps" else torch.float64


def smallest_precision(dtype: torch.dtype) -> float:
    """The smallest precision 1/variance that is used in a dtype: variances above its inverse would overflow.

    In float32 it is about 4e-29, a prior variance beyond all sense. Predictions have reached their limit for
    wider and wider priors long before.
    """
    return float(torch.finfo(dtype).tiny ** 0.75)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Switch a user's autocast off: it may make the model less precise, but not what is computed from it."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()  # a context that does nothing would still be recorded in every trace


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype of predictions: the model's, but at least float32.

    >>> working(torch.bfloat16), working(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)
