"""Ratios to a plain forward pass, measured in pairs: a busy machine slows both halves of a pair."""

import resource
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn


class Batches:
    """Batches of (images, labels), or of images, cut from tensors without a worker or a copy."""

    def __init__(self, images: Tensor, labels: Tensor | None = None, size: int = 128) -> None:
        self.images, self.labels, self.size = images, labels, size

    def __iter__(self) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        for start in range(0, len(self.images), self.size):
            part = slice(start, start + self.size)
            yield self.images[part] if self.labels is None else (self.images[part], self.labels[part])

    def __len__(self) -> int:
        return -(-len(self.images) // self.size)

    def blocks(self, count: int) -> list["Batches"]:
        labels = [None] * count if self.labels is None else self.labels.chunk(count)
        return [Batches(x, y, self.size) for x, y in zip(self.images.chunk(count), labels, strict=True)]


@torch.no_grad()
def plain(model: nn.Module, batches: Batches) -> None:
    """What everything is compared with: the model over the same data, and nothing kept."""
    for batch in batches:
        model(batch[0] if isinstance(batch, tuple) else batch)


def seconds(function: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begun = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def ratio(model: nn.Module, blocks: list[Batches], function: Callable[[Batches], object]) -> float:
    """Median over blocks of (function's time) / (the plain pass's time), the two taken in turn."""
    plain(model, blocks[0])
    function(blocks[0])
    ratios = []
    for block in blocks:
        before = seconds(lambda block=block: plain(model, block))
        own = seconds(lambda block=block: function(block))
        after = seconds(lambda block=block: plain(model, block))
        ratios.append(2 * own / (before + after))
    return statistics.median(ratios)


def peak_megabytes() -> float:
    """The most memory this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
