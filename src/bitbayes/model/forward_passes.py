"""Running a model over data: features and logits of each batch, checked, in eval mode, without gradients."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError
from bitbayes.model.batches import Batch, Inputs
from bitbayes.model.head import Head, forward
from bitbayes.model.late_checks import LateChecks
from bitbayes.model.layout import IGNORED, Layout, position_labels, refuse_copied_labels
from bitbayes.model.private_copy import private_copy
from bitbayes.precision import working


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
    model: nn.Module, head: Head, batches: Iterable[Batch], checks: LateChecks
) -> Iterator[FeatureBatch]:
    """Each batch with its features and logits.

    `checks` raise where these are not finite, or not the head's own. A caller may add to them what it expects
    of the batch.
    """
    network = private_copy(model)
    some = skipped = False
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
        checks.add(_finite_sum(batch.inputs, points.features, points.logits), look_closer)
        yield points
        checks.end_batch()
    if skipped and not some:
        raise DataError(f"no position has a label: all labels are {IGNORED}")


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


def check_finite(batch: Batch, features: Tensor, logits: Tensor, model: nn.Module) -> None:
    """Raise if something is not finite, and say what: the input, the model's weights, or the features."""
    where, inputs = batch.name, batch.inputs
    tensors = {"": inputs} if isinstance(inputs, Tensor) else inputs
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and not finite(tensor):
            raise DataError(f"{where} holds NaN or infinity{f' in {name!r}' if name else ''}")
    if finite(features) and finite(logits):
        return
    bad = [name for name, parameter in model.named_parameters() if not finite(parameter)]
    if bad:
        raise DataError(
            f"the model's weights hold NaN or infinity: {', '.join(map(repr, bad))} (seen at {where})"
        )
    raise DataError(
        f"{where}: the network overflows; its features or logits are not finite in {features.dtype}. "
        "Use smaller inputs, or the model in float64"
    )


def finite(tensor: Tensor) -> bool:
    """Whether every number of the tensor is finite."""
    return bool(_finite_sum(tensor)) or bool(tensor.isfinite().all())


def _finite_sum(*values: Inputs) -> Tensor:
    """Whether the sum of all numbers is finite, (): it is not if a term is not. It may overflow by itself.

    One pass, and no mask.
    """
    tensors = [
        each for value in values for each in ([value] if isinstance(value, Tensor) else value.values())
    ]
    numbers = [each for each in tensors if isinstance(each, Tensor) and not _integers(each)]
    # Half precision in float32, because a sum of thousands of its numbers would overflow.
    sums = [each.sum(dtype=working(each.dtype)) for each in numbers]
    total = sums[-1] if sums else torch.zeros(())
    for more in sums[:-1]:
        total = total + more.to(total.device)
    return total.abs() < math.inf


def _integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())
