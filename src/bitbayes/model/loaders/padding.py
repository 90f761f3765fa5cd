"""Leave out the points that a sampler repeats when several processes share the data.

A `DistributedSampler` gives every process the same number of points, and so do the loaders of Accelerate,
which Hugging Face's `Trainer` uses. If the points cannot be divided evenly, some are repeated at the end. No
point may count twice.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from bitbayes.errors import ArgumentError
from bitbayes.model.loaders.batches import Batch
from bitbayes.processes import current_processes

NOT_PADDED = (
    "give a sampler that repeats no point (range(rank, len(dataset), processes), say, or drop_last=True, "
    "which leaves points out)"
)
# How many levels of nested samplers are searched, and how many entries of a list: long ones hold indices.
LEVELS, ENTRIES = 5, 100


def count_unpadded(loader: Any) -> int | None:
    """How many points of a loader's share are not repeats; None if all. The repeats come last.

    Raises if it is not known which points are repeated.

    >>> from torch.utils.data import DataLoader
    >>> samplers = [DistributedSampler(range(5), num_replicas=4, rank=rank, shuffle=False) for rank in (0, 3)]
    >>> [list(each) for each in samplers]
    [[0, 4], [3, 2]]
    >>> [count_unpadded(DataLoader(range(5), sampler=each)) for each in samplers]
    [2, 1]
    """
    batches = getattr(loader, "batch_sampler", None)
    if _is_accelerates(batches, "BatchSamplerShard"):
        return _count_in_shard(batches)
    iterable = _is_accelerates(getattr(loader, "dataset", None), "IterableDatasetShard")
    if current_processes().size > 1 and (iterable or _is_accelerates(loader, "DataLoaderDispatcher")):
        _refuse("Accelerate has spread an iterable data set over the processes")
    sampler = getattr(batches, "sampler", getattr(loader, "sampler", None))
    if not isinstance(sampler, DistributedSampler) or not _repeats(sampler):
        for outer in (sampler, batches):
            if any(map(_repeats, _samplers_inside(outer))):
                _refuse(f"a {type(outer).__name__} gives out the points of a DistributedSampler")
        return None
    if type(sampler).__iter__ is not DistributedSampler.__iter__:
        _refuse(f"the sampler is a {type(sampler).__name__}")
    if batches is not None and type(batches) is not BatchSampler:
        _refuse(f"the batches are put together by a {type(batches).__name__}")
    if getattr(loader, "num_workers", 0) and not getattr(loader, "in_order", True):
        _refuse("the loader has in_order=False")
    return len(range(sampler.rank, _size(sampler), sampler.num_replicas))


class Unpadded:
    """Leaves the points out that a loader's sampler repeats.

    Raises if it is not known which these are.
    """

    def __init__(self, loader: Any) -> None:
        self.left = count_unpadded(loader)  # points to come before those that are repeated; None: none are

    def skip(self, rows: int) -> None:
        """So many points were read before."""
        if self.left is not None:
            self.left -= rows

    def __call__(self, batch: Batch) -> Batch | None:
        """The next batch without points that are repeated; None if all of them are."""
        if self.left is None:
            return batch
        points = len(batch) if batch.labels is None else len(batch.labels)
        keep, self.left = self.left, self.left - points
        if keep >= points:
            return batch
        if keep > 0 and len(batch) != points:
            _refuse("its inputs do not have one row for each point")
        return next(batch.split(keep)) if keep > 0 else None


def _size(sampler: DistributedSampler[Any]) -> int:
    return len(sampler.dataset)  # type: ignore[arg-type]


def _repeats(sampler: DistributedSampler[Any]) -> bool:
    return not sampler.drop_last and _size(sampler) % sampler.num_replicas > 0


def _samplers_inside(outer: Any) -> Iterator[DistributedSampler[Any]]:
    """Every `DistributedSampler` among the object and its attributes, level by level."""
    level, seen = [outer], {id(outer)}
    for _ in range(LEVELS):
        yield from (each for each in level if isinstance(each, DistributedSampler))
        inner = {id(each): each for value in level for each in _parts(value)}
        level = [each for key, each in inner.items() if key not in seen]
        seen.update(inner)


def _parts(value: Any) -> Iterable[Any]:
    """What a sampler may take its points from: its attributes, or the entries of a list or a dict."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return islice(value, ENTRIES)
    # Only iterables give points; others, a trainer, say, may have samplers of other data.
    return list(getattr(value, "__dict__", {}).values()) if hasattr(type(value), "__iter__") else ()


def _count_in_shard(batches: Any) -> int | None:
    """As `count_unpadded`, for a `BatchSamplerShard`: it takes every `size`-th batch, or a part of each."""
    inside, size, rank = batches.batch_sampler, batches.num_processes, batches.process_index
    if size == 1 or batches.drop_last or not batches.even_batches:
        return None
    if type(inside) is not BatchSampler:
        _refuse(f"the batches are put together by a {type(inside).__name__}")
    total = len(inside.sampler)
    rows: int = inside.batch_size // size if batches.split_batches else inside.batch_size
    starts = range(rank * rows, total, size * rows)
    return sum(min(rows, total - start) for start in starts)


def _is_accelerates(value: Any, name: str) -> bool:
    """Whether it is an object of this class of Accelerate, which need not be installed."""
    kinds = ((each.__module__, each.__name__) for each in type(value).__mro__)
    return ("accelerate.data_loader", name) in kinds


def _refuse(reason: str) -> None:
    raise ArgumentError(
        "some points are repeated, so that each process has as many, and which ones is not known here, "
        f"because {reason}: {NOT_PADDED}"
    )
