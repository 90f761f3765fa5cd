"""Precision: float64 for sums and decompositions where the device has it, the model's for the rest."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def to_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64; on the CPU if its device has no float64 (Apple's)."""
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.double()


def float64_or(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """float64, or `dtype` where the device has no float64 (Apple's)."""
    return dtype if device.type == "mps" else torch.float64


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Switch a user's autocast off: it may make the model less precise, but not what is computed from it."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()  # a context that does nothing would still be recorded in every trace


def prediction_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of predictions: the model's, but at least float32.

    >>> prediction_dtype(torch.bfloat16), prediction_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)
