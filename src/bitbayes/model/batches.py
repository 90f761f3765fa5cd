"""Loaders as users have them: pairs (x, y), or mappings as Hugging Face models take them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import length_hint
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError

Inputs = Tensor | Mapping[str, Tensor]
Data = Inputs | Iterable[Any]
LABELS = ("labels", "label")
EMPTY = "the loader is empty: it yielded no batch"
PREVIEW_ROWS = 2
# How many parts of a tuple a message shows.
SHOWN_PARTS = 4
SEVERAL_INPUTS = (
    "Give several inputs of a model as a mapping by their names, "
    "such as {'input_ids': ids, 'attention_mask': mask}"
)


@dataclass(frozen=True)
class Batch:
    """Some points as a loader gives them.

    inputs: as the model takes them, on its device.
    labels: (n,) as they were given, or None.
    name: what messages call it: "batch 3", or "the input".
    root_kernel: √k(x) (n,) of the residual, if there is one; computed before the model sees the inputs.
    """

    inputs: Inputs
    labels: Tensor | None
    name: str
    root_kernel: Tensor | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return row_count(self.inputs)

    def split(self, rows: int) -> Iterator[Self]:
        """Parts of at most that many points; what has no row for each point is in every part."""
        n = len(self)
        if n <= rows:
            yield self
            return
        for start in range(0, n, rows):
            part = slice(start, start + rows)
            yield replace(self, **{f.name: _take(getattr(self, f.name), part, n) for f in fields(self)})


def _take(value: Any, part: slice, n: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _take(each, part, n) for name, each in value.items()}
    return value[part] if isinstance(value, Tensor) and value.dim() and len(value) == n else value


def model_device(model: nn.Module) -> torch.device:
    """The device of the model's first parameter (the CPU for a model without any)."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def labelled_batches(loader: Iterable[Any], device: torch.device) -> Iterator[Batch]:
    """The batches of a loader, moved to `device`. Raises on a batch without labels and on an empty loader."""
    number = -1
    for number, batch in enumerate(loader):
        inputs, labels = _split(batch, number)
        yield Batch(move(inputs, device), labels.to(device), f"batch {number}")
    if number < 0:
        raise DataError(EMPTY)


def input_batches(data: Data, device: torch.device) -> Iterator[Batch]:
    """Batches without labels, moved to `device`.

    Args:
        data: a tensor or a mapping, which is one batch, or a loader of inputs, or of pairs (inputs, labels),
            whose labels are left out. A second tensor that could be labels is taken for such.
        device: where the batches are wanted.
    """
    check_data(data)
    if isinstance(data, (Tensor, Mapping)):
        yield Batch(move(_without_labels(data), device), None, "the input")
        return
    number, kind = -1, None
    for number, batch in enumerate(data):
        inputs = _inputs(batch, number)
        kind = kind or _kind(inputs)
        if _kind(inputs) != kind:
            raise DataError(
                f"batch {number} is {_kind(inputs)}, and batch 0 is {kind}: are these inputs that belong "
                f"together? {SEVERAL_INPUTS}"
            )
        yield Batch(move(_without_labels(inputs), device), None, f"batch {number}")
    if number < 0:
        raise DataError(EMPTY)


def check_data(data: Any) -> None:
    """Raise unless data is a tensor, a mapping, or something that can be gone through.

    A tuple of tensors may be the inputs of a model that takes several, one batch with its labels, or batches.
    """
    if isinstance(data, tuple) and any(isinstance(part, Tensor) for part in data):
        raise DataError(
            f"the input is {describe(data)}, which may be several inputs, inputs and labels, or batches. "
            f"{SEVERAL_INPUTS}; give a list for batches, or the inputs alone"
        )
    if isinstance(data, (Tensor, Mapping)) or (isinstance(data, Iterable) and not hasattr(data, "__array__")):
        return
    given = type(data).__name__ + (": use torch.from_numpy" if hasattr(data, "__array__") else "")
    raise DataError(f"expected a tensor, a mapping of tensors or a loader, got {given}")


class PreviewedLoader:
    """A loader whose first inputs, the `preview`, can be looked at before it is gone through once."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.loader = check_loader(loader)
        self.iterator = iter(self.loader)
        try:
            self.batch = next(self.iterator)
        except StopIteration:
            raise DataError(EMPTY) from None
        inputs, _ = _split(self.batch, 0)
        # The shapes of a mapping's tensors depend on each other: only a plain tensor is cut.
        self.preview = move(inputs[:PREVIEW_ROWS] if isinstance(inputs, Tensor) else inputs, device)

    def __iter__(self) -> Iterator[Any]:
        yield self.batch
        yield from self.iterator

    def __length_hint__(self) -> int:
        return length_hint(self.loader)


def check_loader(loader: Iterable[Any]) -> Iterable[Any]:
    """Return the loader; raise if it is a tensor, or cannot be gone through."""
    if isinstance(loader, (Tensor, Mapping, str)) or not isinstance(loader, Iterable):
        raise DataError(
            f"expected a loader that yields batches of (inputs, labels), got a {type(loader).__name__}: "
            "wrap your tensors in torch.utils.data.TensorDataset and DataLoader"
        )
    return loader


def move(inputs: Inputs, device: torch.device) -> Inputs:
    """The inputs on that device; what is no tensor stays as it is."""
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}


def row_count(inputs: Inputs) -> int:
    """The number of points: rows of the tensor, or of a mapping's first tensor that has rows."""
    for value in _tensors_with_rows(inputs):
        return value.shape[0]  # not `len`, which a trace would take as fixed
    given = (
        "a tensor of shape ()" if isinstance(inputs, Tensor) else f"a mapping with the keys {list(inputs)}"
    )
    raise DataError(
        f"the input is {given}: expected a tensor with one row for each point, or such in a mapping"
    )


def _tensors_with_rows(inputs: Inputs) -> list[Tensor]:
    values = (inputs,) if isinstance(inputs, Tensor) else inputs.values()
    return [value for value in values if isinstance(value, Tensor) and value.dim()]


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


def _inputs(batch: Any, number: int) -> Inputs:
    """The inputs of a batch that may have labels: of (inputs, labels), (inputs,), or the batch itself."""
    parts = batch if isinstance(batch, (list, tuple)) else (batch,)
    if not 1 <= len(parts) <= 2 or not isinstance(parts[0], (Tensor, Mapping)):
        raise DataError(
            f"batch {number} is {describe(batch)}: expected inputs, or (inputs, labels). {SEVERAL_INPUTS}"
        )
    if len(parts) == 2 and not _may_be_labels(parts[1], parts[0]):
        raise DataError(
            f"batch {number} is {describe(batch)}: the second cannot be labels, one integer for each row "
            f"of the inputs (or 0.0 and 1.0). {SEVERAL_INPUTS}"
        )
    return parts[0]


def _may_be_labels(second: Any, inputs: Inputs) -> bool:
    """Whether a tensor may be the labels of these inputs: (n,) or (n, 1), of integers or of 0.0 and 1.0."""
    if not isinstance(second, Tensor):  # names of files, say, which are no input
        return second is None or (isinstance(second, (list, tuple)) and all(type(x) is str for x in second))
    if second.is_complex() or not second.dim():
        return False
    rows = {len(each) for each in _tensors_with_rows(inputs)}
    if second.shape[1:] not in ((), (1,)) or (rows and len(second) not in rows):
        return False
    return not second.is_floating_point() or bool(((second == 0) | (second == 1)).all())


def _kind(inputs: Inputs) -> str:
    """What the batches of one loader have in common: lengths of sequences may differ."""
    if isinstance(inputs, Tensor):
        return f"a tensor of {inputs.dtype} with {inputs.dim()} dimension(s)"
    return "a mapping"


def _without_labels(inputs: Inputs) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs
    return {name: value for name, value in inputs.items() if name not in LABELS}


def describe(batch: Any) -> str:
    """What was given, for messages."""
    if isinstance(batch, (list, tuple)):
        more = ", …" if len(batch) > SHOWN_PARTS else ""
        return f"a {type(batch).__name__} of ({', '.join(map(_describe_part, batch[:SHOWN_PARTS]))}{more})"
    return f"a {type(batch).__name__}"


def _describe_part(part: Any) -> str:
    if isinstance(part, Tensor):
        return f"Tensor {tuple(part.shape)} {str(part.dtype).removeprefix('torch.')}"
    return type(part).__name__
