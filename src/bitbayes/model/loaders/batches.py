"""Loaders as users have them: pairs (x, y), or mappings as Hugging Face models take them.

Several inputs are a mapping: names are keyword arguments of the model, whole numbers are the places of
positional ones. In a pair, ((x1, x2), y), a tuple of tensors is such a mapping {0: x1, 1: x2}.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError, EmptyLoaderError

Inputs = Tensor | Mapping[Any, Tensor]
# The types of public arguments: the keys of a mapping are names, places, or both.
NamedInputs = Mapping[str, Tensor] | Mapping[int, Tensor] | Mapping[str | int, Tensor]
Loader = Iterable[object]
Data = Tensor | NamedInputs | Loader
LABELS = ("labels", "label")
EMPTY = "the loader is empty: it yielded no batch"
# How many parts of a tuple a message shows.
SHOWN_PARTS = 4
SEVERAL_INPUTS = (
    "Give several inputs of a model as a mapping by their names, "
    "such as {'input_ids': ids, 'attention_mask': mask}, or by their places, {0: x1, 1: x2}"
)


@dataclass(frozen=True)
class Batch:
    """Some points as a loader gives them.

    inputs: as the model takes them, on its device.
    labels: (n,) as they were given, or None.
    name: for messages: "batch 3", or "the input".
    observer: looks at the levels of the network while it runs (`model/head/levels.py`), or None.
    distances: (n, levels), how far each point is from the data, or None; what the observer found.
    positions: the sizes of the axes of positions in the model's output, (t,) or (h, w); () without any.
    """

    inputs: Inputs
    labels: Tensor | None
    name: str
    observer: Any = field(default=None, kw_only=True)
    distances: Tensor | None = field(default=None, kw_only=True)
    positions: tuple[int, ...] = field(default=(), kw_only=True)

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
    for number, given in enumerate(loader):
        yield labelled_batch(given, number, device)
    if number < 0:
        raise EmptyLoaderError(EMPTY)


def labelled_batch(given: Any, number: int, device: torch.device) -> Batch:
    """A loader's batch of that number, moved to `device`. Raises if it has no labels."""
    inputs, labels = split_batch(given, number)
    return Batch(move(inputs, device), labels.to(device), f"batch {number}")


def input_batches(
    data: Data, device: torch.device, *, positions: bool = False, keep_labels: bool = False
) -> Iterator[Batch]:
    """Batches without labels, moved to `device`.

    Args:
        data: a tensor or a mapping, which is one batch, or a loader of inputs, or of pairs (inputs, labels),
            whose labels are left out. A second tensor that could be labels is taken as labels.
        device: where the batches are wanted.
        positions: whether labels have positions, (n, …).
        keep_labels: whether to keep the labels.
    """
    check_data(data)
    if isinstance(data, (Tensor, Mapping)):
        labels = _named_labels(data) if keep_labels else None
        yield Batch(move(without_labels(data), device), _moved(labels, device), "the input")
        return
    number, kind = -1, None
    for number, batch in enumerate(data):
        inputs, labels = _inputs(batch, number, positions)
        kind = kind or _kind(inputs)
        if _kind(inputs) != kind:
            raise DataError(
                f"batch {number} is {_kind(inputs)}, and batch 0 is {kind}: are these inputs that belong "
                f"together? {SEVERAL_INPUTS}"
            )
        labels = labels if keep_labels else None
        yield Batch(move(without_labels(inputs), device), _moved(labels, device), f"batch {number}")
    if number < 0:
        raise EmptyLoaderError(EMPTY)


def _moved(labels: Tensor | None, device: torch.device) -> Tensor | None:
    return None if labels is None else labels.to(device)


def check_data(data: Any) -> None:
    """Raise unless data is a tensor, a mapping, or an iterable.

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


def check_loader(loader: Iterable[Any]) -> Iterable[Any]:
    """Return the loader; raise if it is a tensor, or not iterable."""
    if isinstance(loader, (Tensor, Mapping, str)) or not isinstance(loader, Iterable):
        raise DataError(
            f"expected a loader that yields batches of (inputs, labels), got a {type(loader).__name__}: "
            "wrap your tensors in torch.utils.data.TensorDataset and DataLoader"
        )
    return loader


def move(inputs: Inputs, device: torch.device) -> Inputs:
    """The inputs on that device; values that are no tensors are not changed."""
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


def split_batch(batch: Any, number: int) -> tuple[Inputs, Tensor]:
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
        if (named := _named_labels(batch)) is not None:
            return without_labels(batch), named
        keys = sorted(batch, key=str)
        raise DataError(f"batch {number} is a mapping with the keys {keys}: 'labels' is missing")
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        inputs, labels = by_place(batch[0]), batch[1]
        if isinstance(inputs, (Tensor, Mapping)) and isinstance(labels, Tensor):
            return inputs, labels
    hint = "; is this one batch? Then give [(inputs, labels)]" if isinstance(batch, Tensor) else ""
    many = isinstance(batch, (list, tuple)) and len(batch) > 2 and isinstance(batch[-1], Tensor)
    several = "; several inputs of a model are ((x1, x2), labels)" if many else ""
    raise DataError(
        f"batch {number} is {describe(batch)}: expected a pair of tensors (inputs, labels), "
        f"or a mapping of tensors with a key 'labels'{hint or several}"
    )


def by_place(inputs: Any) -> Any:
    """A tuple or list of tensors as the mapping of a model's positional arguments; anything else unchanged.

    >>> by_place((torch.zeros(1), torch.ones(1)))
    {0: tensor([0.]), 1: tensor([1.])}
    """
    if isinstance(inputs, (list, tuple)) and inputs and all(isinstance(each, Tensor) for each in inputs):
        return dict(enumerate(inputs))
    return inputs


def labels_of(batch: Any) -> Tensor | None:
    """The labels of a batch as a loader gives it, or None."""
    if isinstance(batch, Mapping):
        return _named_labels(batch)
    second = batch[1] if isinstance(batch, (list, tuple)) and len(batch) == 2 else None
    return second if isinstance(second, Tensor) else None


def _named_labels(inputs: Inputs) -> Tensor | None:
    """The labels in a mapping, or None."""
    if isinstance(inputs, Tensor):
        return None
    return next((inputs[name] for name in LABELS if isinstance(inputs.get(name), Tensor)), None)


def _inputs(batch: Any, number: int, positions: bool) -> tuple[Inputs, Tensor | None]:
    """Inputs, and labels or None, from (inputs, labels), (inputs,), or the batch itself."""
    parts = batch if isinstance(batch, (list, tuple)) else (batch,)
    inputs = by_place(parts[0]) if parts else None
    if not 1 <= len(parts) <= 2 or not isinstance(inputs, (Tensor, Mapping)):
        raise DataError(
            f"batch {number} is {describe(batch)}: expected inputs, or (inputs, labels). {SEVERAL_INPUTS}"
        )
    if len(parts) == 1:
        return inputs, _named_labels(inputs)
    if not _may_be_labels(parts[1], inputs, positions):
        kind = "one integer for each position" if positions else "one integer for each row of the inputs"
        raise DataError(
            f"batch {number} is {describe(batch)}: the second cannot be labels, {kind} (or 0.0 and 1.0). "
            f"{SEVERAL_INPUTS}"
        )
    return inputs, parts[1] if isinstance(parts[1], Tensor) else None


def _may_be_labels(second: Any, inputs: Inputs, positions: bool) -> bool:
    """Whether a tensor may be the labels of these inputs: (n,) or (n, 1), of integers or of 0.0 and 1.0.

    With positions it is (n, …), but not of the shape of integer inputs, for which it may be a mask.
    """
    if not isinstance(second, Tensor):  # names of files, say
        return second is None or (isinstance(second, (list, tuple)) and all(type(x) is str for x in second))
    if second.is_complex() or not second.dim():
        return False
    tensors = _tensors_with_rows(inputs)
    rows = {len(each) for each in tensors}
    if positions:
        fits = all(each.shape != second.shape for each in tensors if not each.is_floating_point())
    else:
        fits = second.shape[1:] in ((), (1,))
    if not fits or (rows and len(second) not in rows):
        return False
    return not second.is_floating_point() or bool(((second == 0) | (second == 1)).all())


def _kind(inputs: Inputs) -> str:
    """What the batches of one loader have in common: lengths of sequences may differ."""
    if isinstance(inputs, Tensor):
        return f"a tensor of {inputs.dtype} with {inputs.dim()} dimension(s)"
    return "a mapping"


def without_labels(inputs: Any) -> Any:
    """A mapping without its labels; anything else unchanged."""
    if not isinstance(inputs, Mapping):
        return inputs
    return {name: value for name, value in inputs.items() if name not in LABELS}


def describe(batch: Any) -> str:
    """A description of a batch, for messages."""
    if isinstance(batch, (list, tuple)):
        more = ", …" if len(batch) > SHOWN_PARTS else ""
        return f"a {type(batch).__name__} of ({', '.join(map(_describe_part, batch[:SHOWN_PARTS]))}{more})"
    return f"a {type(batch).__name__}"


def _describe_part(part: Any) -> str:
    if isinstance(part, Tensor):
        return f"Tensor {tuple(part.shape)} {str(part.dtype).removeprefix('torch.')}"
    return type(part).__name__
