"""Loaders as users have them: pairs (x, y), or mappings as Hugging Face models take them."""

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError

Inputs = Tensor | Mapping[str, Tensor]
LABELS = ("labels", "label")
EMPTY = "the loader is empty: it yielded no batch"


def model_device(model: nn.Module) -> torch.device:
    """The device of the model's first parameter (the CPU for a model without any)."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def batches(loader: Iterable[Any], device: torch.device) -> Iterator[tuple[Inputs, Tensor]]:
    """Inputs and labels of each batch, on `device`. Raises on what is neither, and on an empty loader."""
    number = -1
    for number, batch in enumerate(loader):
        inputs, labels = _split(batch, number)
        yield move(inputs, device), labels.to(device)
    if number < 0:
        raise DataError(EMPTY)


def items(data: Iterable[Any] | Inputs, device: torch.device) -> Iterator[Inputs]:
    """The inputs alone, on `device`, of a tensor, a mapping, or a loader with or without labels."""
    if isinstance(data, (Tensor, Mapping)):
        yield move(_without_labels(data), device)
        return
    if not isinstance(data, Iterable) or hasattr(data, "__array__"):
        given = type(data).__name__ + (": use torch.from_numpy" if hasattr(data, "__array__") else "")
        raise DataError(f"expected a tensor, a mapping of tensors or a loader, got {given}")
    number = -1
    for number, batch in enumerate(data):
        if isinstance(batch, (list, tuple)) and len(batch) and isinstance(batch[0], (Tensor, Mapping)):
            batch = batch[0]
        if not isinstance(batch, (Tensor, Mapping)):
            raise DataError(f"batch {number} is {describe(batch)}: expected inputs, or (inputs, labels)")
        yield move(_without_labels(batch), device)
    if number < 0:
        raise DataError(EMPTY)


class PreviewedLoader:
    """A loader whose first inputs (`few`, at most two of them) can be seen before it is gone through."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.loader = check_loader(loader)
        self.iterator = iter(self.loader)
        try:
            self.batch = next(self.iterator)
        except StopIteration:
            raise DataError(EMPTY) from None
        inputs, _ = _split(self.batch, 0)
        # The shapes of a mapping's tensors depend on each other: only a plain tensor is cut.
        self.few = move(inputs[:2] if isinstance(inputs, Tensor) else inputs, device)

    def __iter__(self) -> Iterator[Any]:
        yield self.batch
        yield from self.iterator

    def __len__(self) -> int:
        return len(self.loader) if isinstance(self.loader, Sized) else 0


def check_loader(loader: Iterable[Any]) -> Iterable[Any]:
    """The loader itself; raises on tensors and on what cannot be gone through."""
    if isinstance(loader, (Tensor, Mapping, str)) or not isinstance(loader, Iterable):
        raise DataError(
            f"expected a loader that yields batches of (inputs, labels), got a {type(loader).__name__}: "
            "wrap your tensors in torch.utils.data.TensorDataset and DataLoader"
        )
    return loader


def move(inputs: Inputs, device: torch.device) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}


def row_count(inputs: Inputs) -> int:
    """The number of points: rows of the tensor, or of a mapping's first tensor that has rows."""
    for value in (inputs,) if isinstance(inputs, Tensor) else inputs.values():
        if isinstance(value, Tensor) and value.dim():
            return len(value)
    given = (
        "a tensor of shape ()" if isinstance(inputs, Tensor) else f"a mapping with the keys {list(inputs)}"
    )
    raise DataError(
        f"the input is {given}: expected a tensor with one row for each point, or such in a mapping"
    )


def cut(inputs: Inputs, rows: int) -> Iterator[Inputs]:
    """Pieces of at most that many points; a mapping's tensors depend on each other and stay whole."""
    if isinstance(inputs, Tensor):
        yield from torch.split(inputs, rows)
    else:
        yield inputs


def _split(batch: Any, number: int) -> tuple[Inputs, Tensor]:
    """Inputs and labels, at least one row of them."""
    inputs, labels = _pair(batch, number)
    if not labels.dim():
        raise DataError(
            f"batch {number} has labels of shape (), one number: expected one label for each row of the "
            "inputs, shape (n,)"
        )
    if not len(labels) or (isinstance(inputs, Tensor) and inputs.dim() and not len(inputs)):
        raise DataError(f"batch {number} is empty: it has no rows")
    return inputs, labels


def _pair(batch: Any, number: int) -> tuple[Inputs, Tensor]:
    if isinstance(batch, Mapping):
        names = [name for name in LABELS if isinstance(batch.get(name), Tensor)]
        if names:
            return _without_labels(batch), batch[names[0]]
        raise DataError(f"batch {number} is a mapping with the keys {sorted(batch)}: 'labels' is missing")
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        inputs, labels = batch
        if isinstance(inputs, (Tensor, Mapping)) and isinstance(labels, Tensor):
            return inputs, labels
    hint = "; is this one batch? Then give [(inputs, labels)]" if isinstance(batch, Tensor) else ""
    raise DataError(
        f"batch {number} is {describe(batch)}: expected a pair of tensors (inputs, labels), "
        f"or a mapping of tensors with a key 'labels'{hint}"
    )


def _without_labels(inputs: Inputs) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs
    return {name: value for name, value in inputs.items() if name not in LABELS}


def describe(batch: Any) -> str:
    """What was given, for messages."""
    if isinstance(batch, (list, tuple)):
        return f"a {type(batch).__name__} of ({', '.join(type(part).__name__ for part in batch)})"
    return f"a {type(batch).__name__}"
