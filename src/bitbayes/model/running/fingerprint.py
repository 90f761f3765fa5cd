"""Digests of a model, to recognise the model that a posterior was fitted on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Fingerprint:
    """Two digests: of the model's modules and the shapes of its tensors, and of the tensors' values."""

    architecture: str
    weights: str

    @classmethod
    def of(cls, model: nn.Module, saved: Mapping[str, Tensor], weights: str) -> Fingerprint:
        """The fingerprint of a model whose saved tensors have this digest."""
        lines = [f"{name}:{type(module).__qualname__}\n" for name, module in model.named_modules()]
        adapted = adapted_modules(model)
        used = adapters_in_use(adapted.values()) if adapted else []
        lines += [f"{name}:{each}\n" for name, each in zip(adapted, used, strict=True)]
        lines += [f"{name}:{tuple(each.shape)}:{each.dtype}\n" for name, each in saved.items()]
        return cls(_digest(line.encode() for line in lines), weights)


def fingerprint(model: nn.Module) -> Fingerprint:
    """The fingerprint of `model`. It does not depend on the device, and copies have the same one.

    >>> layer = nn.Linear(2, 1)
    >>> before = fingerprint(layer)
    >>> layer.bias.data += 1
    >>> after = fingerprint(layer)
    >>> before.architecture == after.architecture, before.weights == after.weights
    (True, False)
    """
    saved = saved_tensors(model)
    return Fingerprint.of(model, saved, digest_tensors(saved.values()))


def saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What is saved of a model, but not the extra state of a module, which is not a weight.

    A quantised layer saves its weight and its bias as a tuple.
    """
    found: dict[str, Tensor] = {}
    for name, each in model.state_dict().items():
        parts = enumerate(each) if isinstance(each, tuple) else [(None, each)]
        for place, part in parts:
            if isinstance(part, Tensor):
                found[name if place is None else f"{name}.{place}"] = part
    return found


def adapted_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that have adapters (peft's), by name."""
    modules = model.named_modules()
    # Models of transformers have a method of that name.
    return {name: each for name, each in modules if isinstance(getattr(each, "disable_adapters", None), bool)}


def adapters_in_use(modules: Iterable[nn.Module]) -> list[object]:
    """Which adapters each module uses, and whether all are off: to switch them changes no tensor."""
    return [(getattr(each, "active_adapters", None), each.disable_adapters) for each in modules]


def digest_tensors(tensors: Iterable[Tensor]) -> str:
    """The digest of the tensors' values."""
    return _digest(map(tensor_bytes, tensors))


def tensor_bytes(tensor: Tensor) -> bytes | memoryview:
    """The bytes of a tensor, row by row; not its numbers, because numpy has no bfloat16."""
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
