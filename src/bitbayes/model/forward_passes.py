"""Running a model over data: features and logits of each batch, checked, in eval mode, without gradients."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError
from bitbayes.model.batches import Batch
from bitbayes.model.head import Head, forward
from bitbayes.model.private_copy import private_copy


@dataclass(frozen=True)
class FeatureBatch(Batch):
    """A batch that has gone through the model: the last layer's `features` (n, d) and `logits` (n, k)."""

    features: Tensor
    logits: Tensor

    def __len__(self) -> int:
        return len(self.features)


@torch.no_grad()
def forward_passes(model: nn.Module, head: Head, batches: Iterable[Batch]) -> Iterator[FeatureBatch]:
    """Each batch with its features and logits; raises where these are not finite, or not the head's own."""
    network = private_copy(model)
    for batch in batches:
        features, logits, _ = forward(network, head, batch.inputs, check=True)
        check_finite(batch, features, logits, model)
        yield FeatureBatch(**vars(batch), features=features, logits=logits)


def grouped(parts: Iterable[tuple[Tensor, ...]], size: int) -> Iterator[tuple[Tensor, ...]]:
    """Rows put together to larger parts, each as soon as its first tensors hold `size` bytes.

    A matrix product over a thousand rows costs little more than one over a hundred.

    >>> rows = [(torch.zeros(10, 1),)] * 5
    >>> [len(piece) for piece, in grouped(rows, 4 * 25)]
    [30, 20]
    """
    waiting: list[tuple[Tensor, ...]] = []
    for part in parts:
        waiting.append(part)
        if sum(tensors[0].nbytes for tensors in waiting) >= size:
            yield tuple(torch.cat(column) for column in zip(*waiting, strict=True))
            waiting = []
    if waiting:
        yield tuple(torch.cat(column) for column in zip(*waiting, strict=True))


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
    # A sum is not finite if a term is not: one pass, no mask. Where the sum itself overflows, look closely.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
