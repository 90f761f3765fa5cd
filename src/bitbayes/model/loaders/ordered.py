"""Loaders whose batches come in a fixed order, so that work on them can be interrupted and resumed.

A digest of the batches so far shows whether a loader gives the same ones again. For a `DataLoader` of a
map-style data set the digest is of their indices, and skipped batches are not read. Whether the data are the
same is then checked by the labels of the first batch, which is always read; random augmentation changes the
inputs, but not the labels. For any other loader the digest is of labels and some inputs, and all batches are
read.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import length_hint
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from bitbayes.errors import ArgumentError, DataError
from bitbayes.model.loaders.batches import labels_of
from bitbayes.model.running.change_detector import tensor_bytes

RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
# `DataLoader` arguments to copy, beside the data set and the order.
KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "in_order",
)
# How many numbers at either end of each tensor go into a digest.
NUMBERS = 2**12


class OrderedLoader:
    """A loader that skips its first batches, except the very first, which shows the shapes of the data.

    Args:
        loader: it must give the same batches in the same order every time.
        skip: how many batches were read before.
        digest: `digest_after(skip)` of that time. A `DataError` is raised if it differs now.
        data: `data` of that time, compared in the same way. It is computed when the first batch is read.
    """

    def __init__(self, loader: Iterable[Any], skip: int = 0, digest: str = "", data: str = "") -> None:
        self.loader, self.skip, self.digest, self.data = loader, skip, digest, data
        self._check_order()
        self._digests: list[str] = []

    def __iter__(self) -> Iterator[Any]:
        if not self._by_index():
            return self._in_order(self.loader, _content)
        loader: Any = self.loader
        batches = self._in_order(loader.batch_sampler, lambda indices: repr(list(indices)).encode())
        options = {name: getattr(loader, name) for name in KEPT}
        return self._of_same_data(iter(DataLoader(loader.dataset, batch_sampler=_Once(batches), **options)))

    def __length_hint__(self) -> int:
        return max(0, length_hint(self.loader) - max(0, self.skip - 1))

    def digest_after(self, batches: int) -> str:
        """The digest of the first batches."""
        return self._digests[batches - 1] if batches else ""

    def _by_index(self) -> bool:
        loader = self.loader
        return (
            type(loader) is DataLoader
            and loader.batch_sampler is not None
            and not isinstance(loader.dataset, IterableDataset)
        )

    def _in_order(self, batches: Iterable[Any], content: Any) -> Iterator[Any]:
        """The first batch, and those after the first `skip`; the digest is of all of them."""
        hashed = hashlib.sha256()
        for number, batch in enumerate(batches):
            hashed.update(content(batch))
            self._digests.append(hashed.hexdigest())
            if number + 1 == self.skip:
                self._check_digest()
            if number == 0 or number >= self.skip:
                yield batch
        if len(self._digests) < self.skip:
            self._check_digest()

    def _of_same_data(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; raises if the first one shows that the data are others."""
        for number, batch in enumerate(batches):
            if number == 0:
                self._check_data(batch)
            yield batch

    def _check_data(self, batch: Any) -> None:
        loader: Any = self.loader
        found = hashlib.sha256(repr(length_hint(loader.dataset, -1)).encode())
        labels = labels_of(batch)
        # Labels of positions, such as pixels, are augmented with the inputs.
        if labels is not None and labels.shape[1:] in ((), (1,)):
            found.update(_content(labels))
        before, self.data = self.data, found.hexdigest()
        if self.skip and self.data != before:
            self._refuse()

    def _check_digest(self) -> None:
        if self.digest_after(len(self._digests)) != self.digest:
            self._refuse()

    def _refuse(self) -> None:
        raise DataError(
            f"the first {self.skip:,} batches are not those that were summed up before the interruption: a "
            "checkpoint needs a loader that gives the same batches of the same data in the same order again. "
            "Give that one, or remove the checkpoint"
        )

    def _check_order(self) -> None:
        """Raise if the order is known to change from one time to the next."""
        batches = getattr(self.loader, "batch_sampler", None)
        sampler = getattr(batches, "sampler", getattr(self.loader, "sampler", None))
        if isinstance(sampler, RANDOM) and getattr(sampler, "generator", None) is None:
            raise ArgumentError(
                "the loader shuffles, in another order each time, and a checkpoint needs the same order "
                "again: use shuffle=False, or generator=torch.Generator().manual_seed(…)"
            )
        if getattr(self.loader, "num_workers", 0) and not getattr(self.loader, "in_order", True):
            raise ArgumentError("the loader has in_order=False, and a checkpoint needs batches in order")
        if isinstance(self.loader, Iterator):
            raise ArgumentError(
                f"the loader is a {type(self.loader).__name__}, which can be gone through only once, and a "
                "checkpoint needs one that begins again with the same batches: give a list or a DataLoader"
            )


class _Once:
    """A batch sampler that yields the given batches once."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self.batches


def _content(batch: Any) -> bytes:
    """The sizes and some numbers of all tensors in a batch, and its texts."""
    if isinstance(batch, Tensor):
        flat = batch.detach().reshape(-1)
        some = torch.cat([flat[:NUMBERS], flat[-NUMBERS:]])
        return repr((tuple(batch.shape), batch.dtype)).encode() + bytes(tensor_bytes(some))
    if isinstance(batch, Mapping):
        return b"".join(chain.from_iterable((str(name).encode(), _content(batch[name])) for name in batch))
    if isinstance(batch, (list, tuple)):
        return b"".join(map(_content, batch))
    return repr(batch).encode() if isinstance(batch, (str, bytes)) else b""
