"""Digests of a model, to recognise the model that a posterior was fitted on."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Up to so many bytes the tensors of a model are copied to the CPU together.
MOST_BYTES = 2**28


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
    dtypes, saved = dtypes or {}, _saved_tensors(model)
    converted = (tensor.to(dtypes.get(name, tensor.dtype)) for name, tensor in saved.items())
    return Fingerprint(_architecture(model, saved, dtypes), _digest(map(tensor_bytes, converted)))


@contextmanager
def fingerprinted(model: nn.Module) -> Iterator[Callable[[], Fingerprint]]:
    """While the model is only run: gives its fingerprint, of which another thread makes the digest meanwhile.

    A digest of 40 MB takes as long as a GPU takes for a thousand images and more.
    """
    saved = _saved_tensors(model)
    if sum(tensor.nbytes for tensor in saved.values()) > MOST_BYTES:
        yield lambda: fingerprint(model)
        return
    before = places(saved)
    with ThreadPoolExecutor(1) as other:
        weights = other.submit(_digest_aside, [*saved.values()], _streams_aside(saved.values()))

        def result() -> Fingerprint:
            if places(_saved_tensors(model)) != before:  # running it has changed a buffer
                return fingerprint(model)
            return Fingerprint(_architecture(model, saved, {}), weights.result())

        yield result


def _streams_aside(tensors: Iterable[Tensor]) -> list[torch.cuda.Stream]:
    """A new stream for each GPU of the tensors, behind all work that was given to it so far."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    streams = [torch.cuda.Stream(device) for device in devices]  # type: ignore[no-untyped-call]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
    return streams


def _digest_aside(tensors: list[Tensor], streams: list[torch.cuda.Stream]) -> str:
    """The digest, whose copies to the CPU do not wait for the model's work, nor it for them."""
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(torch.cuda.stream(stream))
        return _digest(map(tensor_bytes, tensors))


def _saved_tensors(model: nn.Module) -> dict[str, Tensor]:
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


def places(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """How often each tensor was written to (inference tensors do not count), and where it is."""
    return {
        name: (-1 if each.is_inference() else each._version, each.data_ptr())
        for name, each in tensors.items()
    }


def adapted_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that have adapters (peft's), by name."""
    modules = model.named_modules()
    # Models of transformers have a method of that name.
    return {name: each for name, each in modules if isinstance(getattr(each, "disable_adapters", None), bool)}


def adapters_in_use(modules: Iterable[nn.Module]) -> list[object]:
    """Which adapters each module uses, and whether all are off: to switch them changes no tensor."""
    return [(getattr(each, "active_adapters", None), each.disable_adapters) for each in modules]


def _architecture(model: nn.Module, saved: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]) -> str:
    lines = [f"{name}:{type(module).__qualname__}\n" for name, module in model.named_modules()]
    adapted = adapted_modules(model)
    lines += [
        f"{name}:{used}\n" for name, used in zip(adapted, adapters_in_use(adapted.values()), strict=True)
    ]
    lines += [f"{name}:{tuple(each.shape)}:{dtypes.get(name, each.dtype)}\n" for name, each in saved.items()]
    return _digest(line.encode() for line in lines)


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> bytes | memoryview:
    """The bytes of a tensor, row by row; not its numbers, because numpy has no bfloat16."""
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""
