"""Recognise a model, and detect that it has changed: during a run, or since it was fitted.

A fingerprint is a digest of all bytes, which takes as long as a small prediction. So each check is cheap:
it compares whether each tensor is the same object at the same address with the same version counter, and some
of its entries, because fused optimisers, writes to `.data` and batch norms do not raise the counter. Only if
one of these differs are fingerprints compared: a model that was moved, or loaded with its own weights, has
not changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError
from bitbayes.model.running.private_copy import STREAM, RandomStream, SideEffects

# Entries of each tensor that are compared: a step of an optimiser changes almost all.
ENTRIES = 16
SHOWN_NAMES = 3
# Models of up to this many bytes are copied to the CPU, for their digest, while they run.
MAX_BYTES_ASIDE = 2**28


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
    """The tensors that are saved of a model, without the extra state of modules.

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
    # In transformers, models have a method of that name.
    return {name: each for name, each in modules if isinstance(getattr(each, "disable_adapters", None), bool)}


def adapters_in_use(modules: Iterable[nn.Module]) -> list[object]:
    """Which adapters each module uses, and whether all are off: switching them changes no tensor."""
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


class ChangeDetector:
    """Detects changes of a model since this detector was made.

    Args:
        model: the model.
        known: its fingerprint.
        mutable_buffers: names of buffers that predictions change; they are not compared.
    """

    def __init__(self, model: nn.Module, known: Fingerprint, mutable_buffers: Collection[str] = ()) -> None:
        self.model, self.fingerprint, self.mutable_buffers = model, known, mutable_buffers
        # (table, name, value) of all modules, parameters and buffers, and the size of each table.
        self._entries: list[tuple[Mapping[str, object], str, object]] = []
        self._sizes: list[tuple[Mapping[str, object], int]] = []
        for module in model.modules():
            for table in (module._modules, module._parameters, module._buffers):
                self._entries += [(table, name, value) for name, value in table.items()]
                self._sizes.append((table, len(table)))
        self._adapted = [*adapted_modules(model).values()]
        self._adapters = adapters_in_use(self._adapted) if self._adapted else []
        self._samples = Samples({k: v for k, v in named_tensors(model).items() if k not in mutable_buffers})
        saved = model.state_dict().keys()  # what the fingerprint covers
        self._unsaved = {
            name: hashlib.sha256(tensor_bytes(each)).digest()
            for name, each in self._samples.tensors.items()
            if name not in saved
        }

    @torch.no_grad()
    def unchanged(self) -> bool | Tensor:
        """Whether a cheap check finds no change: a tensor () if it depends on values.

        If it finds one, `renewed` compares everything.
        """
        return (
            all(table.get(name) is value for table, name, value in self._entries)
            and all(len(table) == size for table, size in self._sizes)
            and (not self._adapted or adapters_in_use(self._adapted) == self._adapters)
            and self._samples.unchanged()
        )

    @torch.no_grad()
    def renewed(self) -> ChangeDetector:
        """The detector of a model that was moved, or loaded with the same weights.

        Raises if it is another model now.
        """
        now = ChangeDetector(self.model, fingerprint(self.model), self.mutable_buffers)
        if now._adapters != self._adapters:
            raise ModelError(
                "other adapters are in use than when the model was fitted: switch them back, or call `fit` "
                "again"
            )
        if now.fingerprint != self.fingerprint or now._unsaved != self._unsaved:
            raise ModelError(
                f"the model has changed since it was fitted ({self._changes(now)}), and the Gaussian belongs "
                "to the weights at fit time: call `fit` again"
            )
        return now

    def _changes(self, now: ChangeDetector) -> str:
        """The names of some tensors that have other values or another dtype, or are new, or are gone."""
        before, after = self._samples.by_name(), now._samples.by_name()
        differ = [name for name in {**before, **after} if not _equal(before.get(name), after.get(name))]
        differ += [name for name, each in self._unsaved.items() if now._unsaved.get(name) != each]
        differ = list(dict.fromkeys(differ))
        if not differ:
            return "in entries other than those that are compared each time"
        more = f" and {len(differ) - SHOWN_NAMES} more" if len(differ) > SHOWN_NAMES else ""
        return ", ".join(map(repr, differ[:SHOWN_NAMES])) + more


class Run:
    """What is known of a model after a run: its fingerprint, and what running it does besides its output."""

    def __init__(self) -> None:
        self.fingerprint = Fingerprint("", "")
        self.side_effects = SideEffects()


@contextmanager
def detect_changes(model: nn.Module, network: nn.Module) -> Iterator[Run]:
    """Detect changes while the model, or a private copy of it, the network, runs in this block.

    At its end the `Run` is filled in. Raises if a parameter has changed at the end: the model is trained at
    the same time. Another thread computes the digest meanwhile: for 40 MB it takes as long as a GPU takes for
    a thousand images.
    """
    run, before, saved = Run(), Samples(named_tensors(model)), saved_tensors(model)
    aside = sum(tensor.nbytes for tensor in saved.values()) <= MAX_BYTES_ASIDE
    pointers = versions_and_pointers(saved)
    with ThreadPoolExecutor(1) as other:
        weights = other.submit(_digest_aside, saved, _streams_aside(saved.values())) if aside else None
        yield run
        changed = {*_changed_buffers(model, before), *_buffers_unlike(model, network)}
        stream: RandomStream | None = network.__dict__.get(STREAM)
        run.side_effects = SideEffects(tuple(sorted(changed)), stream is not None and stream.used)
        if weights is None or versions_and_pointers(saved_tensors(model)) != pointers:
            run.fingerprint = fingerprint(model)
        else:
            run.fingerprint = Fingerprint.of(model, saved, weights.result())


def _changed_buffers(model: nn.Module, before: Samples) -> tuple[str, ...]:
    """The buffers that have changed; raises if a parameter has."""
    tensors = named_tensors(model)
    # If no tensor has moved, the views show its entries: mostly this cheap check suffices.
    same_pointers = versions_and_pointers(tensors) == before.pointers
    if same_pointers and all(map(torch.equal, before.shown(), before.values)):
        return ()
    now = Samples(tensors)
    written = {name for name, each in before.pointers.items() if now.pointers.get(name) != each}
    entries = now.by_name()
    changed = {
        name for name, each in before.by_name().items() if name in entries and not _equal(each, entries[name])
    }
    parameters = dict(model.named_parameters())
    if trained := [name for name in parameters if name in changed]:
        raise ModelError(
            f"the model's {trained[0]!r} has changed while it was fitted: `fit` again, when it is trained"
        )
    return tuple(sorted((written | changed) - parameters.keys()))


def _buffers_unlike(model: nn.Module, network: nn.Module) -> list[str]:
    """The buffers that the network has written to, or replaced, in its own tensors."""
    own, found = dict(model.named_buffers()), list[str]()
    for name, each in network.named_buffers():
        if name in own and each is not own[name]:
            written = not each.is_inference() and each._version > 0
            dense = each.layout == torch.strided
            if written or (dense and not _equal(own[name], each)):
                found.append(name)
    return found


class Samples:
    """Some entries of each tensor at the time this is made, and the address of each tensor.

    views: of these entries, by device and dtype, so that one operation reads them all, and by name.
    values: the entries at that time, concatenated for each device and dtype.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors, self.pointers = tensors, versions_and_pointers(tensors)
        self.views: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            self.views.setdefault((tensor.device, tensor.dtype), {})[name] = _some_entries(tensor)
        self.values = self.shown()

    def shown(self) -> list[Tensor]:
        """The current entries, concatenated for each device and dtype."""
        return [torch.cat([*each.values()]) for each in self.views.values()]

    def unchanged(self) -> bool | Tensor:
        """Whether addresses, version counters and entries have not changed."""
        if versions_and_pointers(self.tensors) != self.pointers:
            return False
        flags = [(now == before).all() for now, before in zip(self.shown(), self.values, strict=True)]
        return torch.stack([flag.to(flags[0].device) for flag in flags]).all() if flags else True

    def by_name(self) -> dict[str, Tensor]:
        """The values, split by name."""
        found: dict[str, Tensor] = {}
        for views, values in zip(self.views.values(), self.values, strict=True):
            found |= zip(views, torch.split(values, [len(view) for view in views.values()]), strict=True)
        return found


def versions_and_pointers(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """The version counter of each tensor (-1 for inference tensors, which have none), and its address."""
    return {
        name: (-1 if each.is_inference() else each._version, each.data_ptr())
        for name, each in tensors.items()
    }


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers, but not those without entries: sparse ones, and on "meta"."""
    every = (*model.named_parameters(), *model.named_buffers())
    return {name: each for name, each in every if each.layout == torch.strided and not each.is_meta}


def _some_entries(tensor: Tensor) -> Tensor:
    """Up to `ENTRIES` entries, spread over the tensor: a view, so that it shows later writes."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        flat = tensor.view(-1)
    elif tensor.numel() and torch.ops.aten.is_non_overlapping_and_dense(tensor):
        flat = tensor.as_strided((tensor.numel(),), (1,))
    else:
        flat = tensor[(slice(0, 1),) * tensor.dim()].view(-1)
    return flat[:: max(1, len(flat) // ENTRIES)][:ENTRIES]


def _equal(before: Tensor | None, after: Tensor | None) -> bool:
    """Whether both hold the same numbers, or NaN at the same places, in the same dtype."""
    if before is None or after is None or before.shape != after.shape or before.dtype != after.dtype:
        return False
    a, b = before.cpu(), after.cpu()
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def _streams_aside(tensors: Iterable[Tensor]) -> list[torch.cuda.Stream]:
    """A new stream for each GPU of the tensors, which starts after all work submitted so far."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    streams = [torch.cuda.Stream(device) for device in devices]  # type: ignore[no-untyped-call]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
    return streams


def _digest_aside(tensors: Mapping[str, Tensor], streams: list[torch.cuda.Stream]) -> str:
    """The digest. Its copies to the CPU do not wait for the model's work, nor does the model for them."""
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(torch.cuda.stream(stream))
        return digest_tensors(tensors.values())
