"""Is this the model it was fitted on? Two digests: what it is built of, and what its tensors hold."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Fingerprint:
    """Digests of the model's modules and tensor shapes, and of the tensors' values."""

    architecture: str
    weights: str


def fingerprint(model: nn.Module) -> Fingerprint:
    """The fingerprint of `model`: the same on every device, for every copy of it.

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
        if not isinstance(tensor, Tensor):  # a module's own extra state: no weight
            continue
        architecture.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        # numpy has no bfloat16: hash the bytes.
        weights.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return Fingerprint(architecture.hexdigest(), weights.hexdigest())
