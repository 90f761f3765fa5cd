"""Notice that a model has changed since its posterior was fitted.

A look at every tensor's bytes would take as long as a small prediction. So what is looked at each time is
cheap: whether each tensor is the same object in the same place with the same version counter, and some of its
entries, because fused optimisers, writes to `.data` and batch norms do not raise the counter. Only if one of
these differs are all bytes compared: a model that was moved, or loaded with its own weights, has not changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError
from bitbayes.model.running.fingerprint import (
    Fingerprint,
    adapted_modules,
    adapters_in_use,
    fingerprint,
    places,
    tensor_bytes,
)

# Entries of each tensor that are compared: a step of an optimiser changes almost all.
ENTRIES = 16
SHOWN_NAMES = 3
# Views of tensors, by name; those of one device and dtype together, so that one operation takes them all.
Views = dict[tuple[torch.device, torch.dtype], dict[str, Tensor]]


class Watch:
    """The tensors of a model as they are now.

    Args:
        model: the model.
        known: its fingerprint.
        living: names of buffers that predictions change, and that are not looked at.
    """

    def __init__(self, model: nn.Module, known: Fingerprint, living: Collection[str] = ()) -> None:
        self.model, self.fingerprint, self.living = model, known, living
        # (table, name, what it holds) of all modules, parameters and buffers, and how many there are.
        self._entries: list[tuple[Mapping[str, object], str, object]] = []
        self._sizes: list[tuple[Mapping[str, object], int]] = []
        for module in model.modules():
            for table in (module._modules, module._parameters, module._buffers):
                self._entries += [(table, name, value) for name, value in table.items()]
                self._sizes.append((table, len(table)))
        self._adapted = [*adapted_modules(model).values()]
        self._adapters = adapters_in_use(self._adapted)
        tensors = {name: each for name, each in _named_tensors(model) if name not in living}
        self._tensors, self._places = tensors, places(tensors)
        # Views, and what they showed.
        self._views = _views(tensors)
        self._values = _shown(self._views)
        saved = model.state_dict().keys()  # what the fingerprint is of
        self._others = {
            name: hashlib.sha256(tensor_bytes(each)).digest()
            for name, each in tensors.items()
            if name not in saved
        }

    @torch.no_grad()
    def unchanged(self) -> bool | Tensor:
        """Whether nothing has changed, by a cheap look: a tensor () where values decide.

        If not, `renewed` looks closer.
        """
        return (
            all(table.get(name) is value for table, name, value in self._entries)
            and all(len(table) == size for table, size in self._sizes)
            and adapters_in_use(self._adapted) == self._adapters
            and places(self._tensors) == self._places
            and self._same_entries()
        )

    def _same_entries(self) -> bool | Tensor:
        """Whether the entries that are looked at are the same as before."""
        pairs = zip(_shown(self._views), self._values, strict=True)
        flags = [(shown == values).all() for shown, values in pairs]
        return torch.stack([flag.to(flags[0].device) for flag in flags]).all() if flags else True

    @torch.no_grad()
    def renewed(self) -> Watch:
        """The watch on a model that was moved, converted to another dtype, or loaded with the same weights.

        Raises if it is another model now.
        """
        now = Watch(self.model, fingerprint(self.model), self.living)
        if now._adapters != self._adapters:
            raise ModelError(
                "other adapters are in use than when the model was fitted: switch them back, or call `fit` "
                "again"
            )
        if changed := self._changed(now):
            shown = ", ".join(map(repr, changed[:SHOWN_NAMES]))
            rest = f" and {len(changed) - SHOWN_NAMES} more" if len(changed) > SHOWN_NAMES else ""
            raise ModelError(
                f"the model has changed since it was fitted ({shown}{rest}), and the Gaussian belongs to its "
                "weights of then: call `fit` again"
            )
        return now

    def _changed(self, now: Watch) -> list[str]:
        """The names of the tensors that have other values, or are new, or are gone."""
        before, after = self._samples(), now._samples()
        others = [name for name, each in self._others.items() if now._others.get(name) != each]
        if now.fingerprint == self.fingerprint:
            return [name for name in others if not _converted(before[name], after.get(name))]
        differ = [name for name in {**before, **after} if not _agree(before.get(name), after.get(name))]
        if differ:
            return differ
        dtypes = {name: each.dtype for name, each in before.items() if each.dtype != after[name].dtype}
        # Of a conversion that rounds, the entries that are looked at are all that can be compared.
        rounds = any(after[name].dtype.itemsize <= dtype.itemsize for name, dtype in dtypes.items())
        same = dtypes and (rounds or fingerprint(self.model, dtypes).weights == self.fingerprint.weights)
        return [] if same else ["entries other than those that were looked at before"]

    def _samples(self) -> dict[str, Tensor]:
        """The entries of each tensor that are looked at, as they were."""
        return _by_name(self._views, self._values)


@contextmanager
def watched(model: nn.Module) -> Iterator[set[str]]:
    """While the model is only run: afterwards the set holds the names of the buffers that running it changes.

    Raises if a parameter has other entries: somebody trains the model at the same time.
    """
    living: set[str] = set()
    tensors = dict(_named_tensors(model))
    before_places, views = places(tensors), _views(tensors)
    entries = _shown(views)
    yield living
    now = dict(_named_tensors(model))
    now_places = places(now)
    # While every tensor is where it was, what the views show is what it holds: one look, and mostly the last.
    if now_places == before_places and all(map(torch.equal, _shown(views), entries)):
        return
    before, after = _by_name(views, entries), _entries(now)
    written = {name for name, place in before_places.items() if now_places.get(name) != place}
    changed = {name for name, each in before.items() if name in after and not _agree(each, after[name])}
    parameters = dict(model.named_parameters())
    if trained := [name for name in parameters if name in changed]:
        raise ModelError(
            f"the model's {trained[0]!r} has changed while it was fitted: `fit` again, when it is trained"
        )
    living |= (written | changed) - parameters.keys()


def _entries(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Some entries of each tensor."""
    views = _views(tensors)
    return _by_name(views, _shown(views))


def _shown(views: Views) -> list[Tensor]:
    """What the views of each place show now."""
    return [torch.cat([*each.values()]) for each in views.values()]


def _views(tensors: Mapping[str, Tensor]) -> Views:
    """Views of some entries of each tensor."""
    views: Views = {}
    for name, tensor in tensors.items():
        views.setdefault((tensor.device, tensor.dtype), {})[name] = _some_entries(tensor)
    return views


def _by_name(views: Views, values: list[Tensor]) -> dict[str, Tensor]:
    """The entries of each tensor, of what the views of each place showed one after the other."""
    found: dict[str, Tensor] = {}
    for each, shown in zip(views.values(), values, strict=True):
        found |= zip(each, torch.split(shown, [len(view) for view in each.values()]), strict=True)
    return found


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers, but not those without entries to look at: sparse ones, and on "meta"."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout == torch.strided and not tensor.is_meta:
            yield name, tensor


def _some_entries(tensor: Tensor) -> Tensor:
    """Up to `ENTRIES` entries, spread over the tensor: a view, so that it shows what is written later."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        flat = tensor.view(-1)
    elif tensor.numel() and torch.ops.aten.is_non_overlapping_and_dense(tensor):
        flat = tensor.as_strided((tensor.numel(),), (1,))
    else:
        flat = tensor[(slice(0, 1),) * tensor.dim()].view(-1)
    return flat[:: max(1, len(flat) // ENTRIES)][:ENTRIES]


def _converted(before: Tensor, after: Tensor | None) -> bool:
    """Whether a tensor has another dtype now, and the same numbers up to rounding."""
    return after is not None and after.dtype != before.dtype and _agree(before, after)


def _agree(before: Tensor | None, after: Tensor | None) -> bool:
    """Whether both hold the same numbers, up to the rounding of a conversion between dtypes."""
    if before is None or after is None or before.shape != after.shape:
        return False
    if before.dtype == after.dtype:
        a, b = before.cpu(), after.cpu()
        return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())
    if not (before.is_floating_point() and after.is_floating_point()):
        return False
    coarse = max(torch.finfo(before.dtype).eps, torch.finfo(after.dtype).eps)
    tiny = max(torch.finfo(before.dtype).tiny, torch.finfo(after.dtype).tiny)
    a, b = before.double().cpu(), after.double().cpu()
    return bool(((a - b).abs() <= coarse * a.abs() + tiny).all())
