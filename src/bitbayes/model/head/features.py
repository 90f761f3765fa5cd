"""Running a model over data: features and logits of each batch, checked, in eval mode, without gradients."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from bitbayes.errors import EmptyLoaderError
from bitbayes.model.head.head import Head, forward
from bitbayes.model.head.layout import IGNORED, Layout, position_labels, refuse_copied_labels
from bitbayes.model.loaders.batches import Batch
from bitbayes.model.running.deferred_checks import DeferredChecks
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

    def select(self, which: Tensor) -> Self:
        """Some of the points, by a mask or by their indices; the inputs stay as they are."""
        labels, root = self.labels, self.root_kernel
        return replace(
            self,
            labels=None if labels is None else labels[which],
            features=self.features[which],
            logits=self.logits[which],
            root_kernel=None if root is None else root[which.to(root.device)],
        )


class FeaturePasses:
    """Runs batches through a model, in eval mode and without gradients.

    Args:
        model: the model.
        head: its head.
        checks: raise where features and logits are not finite, or not the head's own.
        some: whether there were points before these batches.
    """

    def __init__(self, model: nn.Module, head: Head, checks: DeferredChecks, *, some: bool = False) -> None:
        self.model, self.head, self.checks = model, head, checks
        self.network = private_copy(model)
        self.some, self.skipped = some, False

    @torch.no_grad()
    def run(self, batch: Batch) -> FeatureBatch | None:
        """The batch with its features and logits; None if all labels of its positions are -100."""
        features, logits, shape = forward(self.network, self.head, batch.inputs, self.checks)
        points = FeatureBatch(**vars(batch), features=features, logits=logits)
        if self.head.layout.positions:
            if not self.some and not self.skipped:
                refuse_copied_labels(batch)
            points = _by_position(points, self.head.layout, shape)
            if points.labels is not None and not len(points):
                self.skipped = True
                return None
        self.some = True
        look_closer = partial(check_finite, batch, points.features, points.logits, self.model)
        self.checks.add(finite_sum(batch.inputs, points.features, points.logits), look_closer)
        return points

    def end(self) -> None:
        """Raise if no batch had a point."""
        if self.skipped and not self.some:
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
    return replace(points, labels=labels).select(labels != IGNORED)
