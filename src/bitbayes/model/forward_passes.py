"""Running a model over data: features and logits of each batch, checked, in eval mode, without gradients."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError
from bitbayes.model.batches import Inputs, batches, items, model_device
from bitbayes.model.eval_mode import eval_mode
from bitbayes.model.head import Head, forward

Check = Callable[[Tensor, Tensor, int], Tensor]


@torch.no_grad()
def observe(
    model: nn.Module,
    head: Head,
    loader: Iterable[Any],
    check: Check,
    see: Callable[[Inputs], None] = lambda inputs: None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Features (n, d), logits (n, k) and labels (n,) of each batch.

    `check(labels, logits, number)` gives the labels as they should be; `see(inputs)` is told of each batch.
    """
    for number, (inputs, labels) in enumerate(batches(loader, model_device(model))):
        see(inputs)
        # Batch by batch, so that the model is in its own mode whenever this generator waits or is dropped.
        with eval_mode(model):
            features, logits, _ = forward(model, head, inputs, check=True)
        check_finite(f"batch {number}", inputs, features, logits, model)
        yield features, logits, check(labels, logits, number)


@torch.no_grad()
def observe_inputs(
    model: nn.Module, head: Head, data: Inputs | Iterable[Any]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Features (n, d) and logits (n, k) of each batch of inputs without labels."""
    one = isinstance(data, (Tensor, Mapping))
    for number, inputs in enumerate(items(data, model_device(model))):
        with eval_mode(model):
            features, logits, _ = forward(model, head, inputs, check=True)
        check_finite("the input" if one else f"batch {number}", inputs, features, logits, model)
        yield features, logits


def grouped(parts: Iterable[tuple[Tensor, ...]], size: int) -> Iterator[tuple[Tensor, ...]]:
    """The same rows in larger pieces: each as soon as its first tensors hold `size` bytes, the rest last.

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


def check_finite(where: str, inputs: Inputs, features: Tensor, logits: Tensor, model: nn.Module) -> None:
    """Raise, and say what is not finite: the input, the model's weights, or what it makes of the input."""
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
    """Whether all its numbers are."""
    # A sum is not finite if a term is not: one pass, no mask. Where the sum itself overflows, look closely.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
