"""Running a model over data: features and logits of each batch, checked, in eval mode, without gradients."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from bitbayes.errors import EmptyLoaderError
from bitbayes.model.head.head import Head, forward
from bitbayes.model.head.layout import IGNORED, Layout, position_labels, refuse_copied_labels
from bitbayes.model.loaders.batches import Batch
from bitbayes.model.running.deferred_checks import LateChecks
from bitbayes.model.running.finite import check_finite, finite_sum
from bitbayes.model.running.private_copy import private_copy


@dataclass(frozen=True)
class FeatureBatch(Batch):
    """A batch that has gone through the model: the last layer's `features` (n, d) and `logits` (n, k).

    Where the output has positions, each is a point, with a row of its own. Those with the label -100 are left
    out.
    """

    features: Tensor
    logits: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, which: Tensor) -> Self:
        """Some of the points, by a mask or by their places; the inputs stay as they are."""
        labels, root = self.labels, self.root_kernel
        return replace(
            self,
            labels=None if labels is None else labels[which],
            features=self.features[which],
            logits=self.logits[which],
            root_kernel=None if root is None else root[which.to(root.device)],
        )


@torch.no_grad()
def forward_passes(
    model: nn.Module, head: Head, batches: Iterable[Batch], checks: LateChecks, *, some: bool = False
) -> Iterator[FeatureBatch]:
    """Each batch with its features and logits.

    `checks` raise where these are not finite, or not the head's own. A caller may add to them what it expects
    of the batch. `some`: whether there were points before these batches.
    """
    network = private_copy(model)
    skipped = False
    for batch in batches:
        features, logits, shape = forward(network, head, batch.inputs, checks)
        points = FeatureBatch(**vars(batch), features=features, logits=logits)
        if head.layout.positions:
            if not some and not skipped:
                refuse_copied_labels(batch)
            points = _by_position(points, head.layout, shape)
            if points.labels is not None and not len(points):
                skipped = True
                continue
        some = True
        look_closer = partial(check_finite, batch, points.features, points.logits, model)
        checks.add(finite_sum(batch.inputs, points.features, points.logits), look_closer)
        yield points
        checks.end_batch()
    if skipped and not some:
        raise EmptyLoaderError(f"no position has a label: all labels are {IGNORED}")


def _by_position(points: FeatureBatch, layout: Layout, shape: tuple[int, ...]) -> FeatureBatch:
    """A row of everything for each position that counts; `shape`: that of the model's output."""
    sizes = layout.position_sizes(shape)
    root, labels = points.root_kernel, points.labels
    if root is not None:
        root = root.repeat_interleave(math.prod(sizes))
    points = replace(points, root_kernel=root, positions=sizes)
    if labels is None:
        return points
    labels = position_labels(labels, shape[0], sizes, points.name)
    return replace(points, labels=labels).rows(labels != IGNORED)


def grouped(parts: Iterable[tuple[Tensor, ...]], size: int) -> Iterator[tuple[Tensor, ...]]:
    """Rows put together to larger parts, each as soon as its largest tensors hold `size` bytes.

    A matrix product over a thousand rows costs little more than one over a hundred.

    >>> rows = [(torch.zeros(10, 1),)] * 5
    >>> [len(piece) for piece, in grouped(rows, 4 * 25)]
    [30, 20]
    """
    waiting: list[tuple[Tensor, ...]] = []
    held = 0
    for part in parts:
        waiting.append(part)
        held += max(tensor.nbytes for tensor in part)
        if held >= size:
            yield _joined(waiting)
            waiting, held = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    if len(parts) == 1:  # which `cat` would copy
        return parts[0]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))
