"""Digests of a model, to recognise the model that a posterior was fitted on."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Fingerprint:
    """Two digests: of the model's modules and the shapes of its tensors, and of the tensors' values."""

    architecture: str
    weights: str


def fingerprint(model: nn.Module, dtypes: Mapping[str, torch.dtype] | None = None) -> Fingerprint:
    """The fingerprint of `model`. It does not depend on the device, and copies have the same one.

    `dtypes`: to which tensors are converted before, by name.

    >>> layer = nn.Linear(2, 1)
    >>> before = fingerprint(layer)
    >>> layer.bias.data += 1
    >>> after = fingerprint(layer)
    >>> before.architecture == after.architecture, before.weights == after.weights
    (True, False)
    """
    architecture, weights = hashlib.sha256(), hashlib.sha256()
    for name, module in model.named_modules():
        architecture.update(f"{name}:{type(module).__qualname__}\n".encode())
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):  # the extra state of a module is not a weight
            continue
        tensor = tensor if dtypes is None else tensor.to(dtypes.get(name, tensor.dtype))
        architecture.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}\n".encode())
        weights.update(tensor_bytes(tensor))
    return Fingerprint(architecture.hexdigest(), weights.hexdigest())


def tensor_bytes(tensor: Tensor) -> bytes | memoryview:
    """The bytes of a tensor, row by row; not its numbers, because numpy has no bfloat16."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""
