"""Loaders as users have them: pairs (x, y), or mappings as Hugging Face models take them.

Several inputs are a mapping: names are keyword arguments of the model, whole numbers are the places of
positional ones. In a pair, ((x1, x2), y), a tuple of tensors is such a mapping {0: x1, 1: x2}. What the model
does not take, such as paths of files, is left out (`arguments.py`).
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError, EmptyLoaderError, UnusedDataWarning, level_of_the_caller
from bitbayes.model.loaders.arguments import USE_ADAPT, as_arguments, model_device, takes_one_input
from bitbayes.model.running.selected import adapted
from bitbayes.precision import to_float64

Inputs = Tensor | Mapping[Any, Tensor]
# The types of public arguments: the keys of a mapping are names, places, or both.
NamedInputs = Mapping[str, Tensor] | Mapping[int, Tensor] | Mapping[str | int, Tensor]
Loader = Iterable[object]
Data = Tensor | NamedInputs | Loader
LABELS = ("labels", "label")
WEIGHT = "weight"
EMPTY = "the loader is empty: it yielded no batch"
# How many parts of a tuple a message shows.
SHOWN_PARTS = 4
SEVERAL_INPUTS = (
    "Give several inputs of a model as a mapping by their names, "
    "such as {'input_ids': ids, 'attention_mask': mask}, or by their places, {0: x1, 1: x2}"
)


@dataclass(frozen=True)
class InputForm:
    """What the inputs of `fit` are like, by its first batch.

    names: the keys, if they are a mapping; None for one tensor.
    row: the shape of one row of that tensor; None for a mapping.
    """

    names: tuple[Any, ...] | None = None
    row: tuple[int, ...] | None = None

    @classmethod
    def of(cls, inputs: Inputs) -> Self:
        """The form of these inputs."""
        if isinstance(inputs, Tensor):
            return cls(None, tuple(inputs.shape[1:]))
        return cls(tuple(sorted(inputs, key=str)), None)

    @classmethod
    def read(cls, saved: Mapping[str, Any] | None) -> Self:
        """From what `dataclasses.asdict` and JSON made of it; files of earlier versions have none."""
        parts = {} if saved is None else saved
        return cls(**{name: None if part is None else tuple(part) for name, part in parts.items()})

    def refuse_one_row(self, inputs: Inputs) -> None:
        """Raise if this is one row, without an axis for the rows of a batch."""
        if isinstance(inputs, Tensor) and inputs.dim() and tuple(inputs.shape) == self.row:
            raise DataError(f"the input has shape {tuple(inputs.shape)}, which is one row: use x[None]")


@dataclass(frozen=True)
class Batch:
    """Some points as a loader gives them.

    inputs: as the model takes them, on its device.
    labels: (n,) as they were given, or None.
    name: for messages: "batch 3", or "the input".
    observer: looks at the levels of the network while it runs (`model/head/levels.py`), or None.
    rows: those of the levels, (n, d) each, until the observer has looked at them.
    distances: (n, levels), how far each point is from the data, or None; what the observer found.
    positions: the sizes of the axes of positions in the model's output, (t,) or (h, w); () without any.
    weights: (n,) in float64, how many times each point counts; None if each counts once.
    """

    inputs: Inputs
    labels: Tensor | None
    name: str
    observer: Any = field(default=None, kw_only=True)
    rows: tuple[Tensor, ...] = field(default=(), kw_only=True)
    distances: Tensor | None = field(default=None, kw_only=True)
    positions: tuple[int, ...] = field(default=(), kw_only=True)
    weights: Tensor | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return row_count(self.inputs)

    def split(self, rows: int) -> Iterator[Self]:
        """Parts of at most that many points; what has no row for each point is in every part."""
        n = len(self)
        if n <= rows:
            yield self
            return
        for start in range(0, n, rows):
            yield self.part(slice(start, start + rows))

    def part(self, points: slice | Tensor) -> Self:
        """Some of the points; what has no row for each point stays as it is."""
        n = len(self)
        return replace(self, **{f.name: _take(getattr(self, f.name), points, n) for f in fields(self)})


def _take(value: Any, part: slice | Tensor, n: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _take(each, part, n) for name, each in value.items()}
    return value[part] if isinstance(value, Tensor) and value.dim() and len(value) == n else value


def labelled_batches(loader: Iterable[Any], model: nn.Module, *, weighted: bool = False) -> Iterator[Batch]:
    """The batches of a loader for a model. Raises on a batch without labels and on an empty loader."""
    number = -1
    for number, given in enumerate(loader):
        yield labelled_batch(given, number, model, weighted=weighted)
    if number < 0:
        raise EmptyLoaderError(EMPTY)


def labelled_batch(given: Any, number: int, model: nn.Module, *, weighted: bool = False) -> Batch:
    """A loader's batch of that number, as the model takes it. Raises if it has no labels.

    `weighted`: whether it has the weights of its points, too. Raises if it has none then.
    """
    if weighted and getattr(getattr(type(model), "_adapt_batch", None), "gives_pairs", False):
        raise DataError("weighted=True is not for pairs of inputs: leave their weights out")
    given, weights = adapted(given, model), None
    if weighted:
        given, weights = _split_weights(given, number)
    inputs, labels = split_batch(given, number, model)
    device = model_device(model)
    if weights is not None:
        weights = _checked_weights(weights, len(labels), number)
        weights = weights if device.type == "mps" else weights.to(device)  # MPS has no float64
    inputs = as_arguments(inputs, model, number)
    return Batch(inputs, labels.to(device), f"batch {number}", weights=weights)


def _split_weights(batch: Any, number: int) -> tuple[Any, Any]:
    """A batch without its weights, and these: the third of several parts, or under their key."""
    if isinstance(batch, Mapping) and WEIGHT in batch:
        return {name: value for name, value in batch.items() if name != WEIGHT}, batch[WEIGHT]
    if isinstance(batch, (list, tuple)) and len(batch) > 2:
        return (*batch[:2], *batch[3:]), batch[2]
    given = (
        f"a mapping with the keys {sorted(batch, key=str)}" if isinstance(batch, Mapping) else describe(batch)
    )
    raise DataError(
        f"batch {number} is {given}, and weighted=True needs the weight of each point: batches "
        f"(inputs, labels, weights), or mappings with a key {WEIGHT!r}"
    )


def _checked_weights(given: Any, n: int, number: int) -> Tensor:
    """Weights (n,) in float64; raises unless they are finite numbers from 0 on."""
    weights = _as_labels(given)
    if weights is None or weights.is_complex() or weights.shape != (n,):
        shown = type(given).__name__ if weights is None else f"a tensor of shape {tuple(weights.shape)}"
        raise DataError(
            f"batch {number}: the weights are {shown}; expected real numbers of shape {(n,)}, one for each "
            "label"
        )
    weights = to_float64(weights.detach())
    wrong = weights[~(weights.isfinite() & (weights >= 0))]
    if len(wrong):
        raise DataError(
            f"batch {number}: a weight is {wrong[0].item():g}; expected finite numbers from 0 on, because "
            "a point with the weight w counts w times"
        )
    return weights


def input_batches(
    data: Data,
    model: nn.Module,
    *,
    form: InputForm | None = None,
    positions: bool = False,
    width: int | None = None,
    keep_labels: bool = False,
) -> Iterator[Batch]:
    """Batches without labels, as the model takes them.

    Args:
        data: a tensor or a mapping, which is one batch, or a loader of inputs, or of pairs (inputs, labels),
            whose labels are left out. A second tensor that could be labels is taken as labels.
        model: it says which inputs it takes, and its device is where the batches are wanted.
        form: what the inputs of `fit` are like; what follows such inputs in a pair can only be labels.
        positions: whether labels have positions, (n, …).
        width: how many real numbers the label of a point is, (n, width); None if it is a class.
        keep_labels: whether to keep the labels.
    """
    check_data(data)
    device = model_device(model)
    if isinstance(data, (Tensor, Mapping)):
        labels = _named_labels(data) if keep_labels else None
        yield Batch(as_arguments(without_labels(data), model, 0), _labels_on(device, labels), "the input")
        return
    number, kind = -1, None
    for number, given in enumerate(data):
        inputs, labels = _inputs(adapted(given, model), number, model, form, positions, width)
        kind = kind or _kind(inputs)
        if _kind(inputs) != kind:
            raise DataError(
                f"batch {number} is {_kind(inputs)}, and batch 0 is {kind}: are these inputs that belong "
                f"together? {SEVERAL_INPUTS}"
            )
        labels = labels if keep_labels else None
        yield Batch(inputs, _labels_on(device, labels), f"batch {number}")
    if number < 0:
        raise EmptyLoaderError(EMPTY)


def _labels_on(device: torch.device, labels: Tensor | None) -> Tensor | None:
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


def row_count(inputs: Inputs) -> int:
    """The number of points: rows of the tensor, or of a mapping's first tensor that has rows."""
    for value in _tensors_with_rows(inputs):
        return value.shape[0]  # not `len`, which a trace would take as fixed
    given = "a tensor of shape ()" if isinstance(inputs, Tensor) else "no tensor"
    given = f"a mapping with the keys {list(inputs)}" if isinstance(inputs, Mapping) else given
    raise DataError(
        f"the input is {given}: expected a tensor with one row for each point, or such in a mapping"
    )


def _tensors_with_rows(inputs: Inputs) -> list[Tensor]:
    values = inputs.values() if isinstance(inputs, Mapping) else (inputs,)
    return [value for value in values if isinstance(value, Tensor) and value.dim()]


def split_batch(batch: Any, number: int, model: nn.Module) -> tuple[Inputs, Tensor]:
    """Inputs and labels, at least one row of them."""
    inputs, labels = _pair(batch, number, model)
    if not labels.dim():
        raise DataError(
            f"batch {number} has labels of shape (), one number: expected one label for each row of the "
            "inputs, shape (n,)"
        )
    if not len(labels) or (isinstance(inputs, Tensor) and inputs.dim() and not len(inputs)):
        raise DataError(f"batch {number} is empty: it has no rows")
    return inputs, labels


def _pair(batch: Any, number: int, model: nn.Module) -> tuple[Inputs, Tensor]:
    if isinstance(batch, Mapping):
        if (named := _named_labels(batch)) is not None:
            return without_labels(batch), named
        keys = sorted(batch, key=str)
        raise DataError(
            f"batch {number} is a mapping with the keys {keys}: 'labels' is missing. Name them so, or "
            f"{USE_ADAPT}"
        )
    batch = _without_rest(batch, number, model)
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        inputs, labels = by_place(batch[0]), _as_labels(batch[1])
        if isinstance(inputs, (Tensor, Mapping)) and labels is not None:
            return inputs, labels
    hint = "; is this one batch? Then give [(inputs, labels)]" if isinstance(batch, Tensor) else ""
    many = isinstance(batch, (list, tuple)) and len(batch) > 2
    several = f"; several inputs of a model are ((x1, x2), labels). Otherwise {USE_ADAPT}" if many else ""
    raise DataError(
        f"batch {number} is {describe(batch)}: expected a pair of tensors (inputs, labels), "
        f"or a mapping of tensors with a key 'labels'{hint or several}"
    )


def _without_rest(batch: Any, number: int, model: nn.Module) -> Any:
    """(inputs, labels) of a batch (inputs, labels, …) whose other parts the model cannot take.

    These are no tensors, or the model takes one input alone. Any other batch is returned unchanged.
    """
    if not isinstance(batch, (list, tuple)) or len(batch) < 3:
        return batch
    labels, rest = _as_labels(batch[1]), [part for part in batch[2:] if isinstance(part, Tensor)]
    if labels is None or (rest and not takes_one_input(model)):
        return batch
    if labels.dim() > 1 and any(part.shape == labels.shape for part in rest):
        return batch  # either may be the labels of positions
    if number == 0:
        warnings.warn(
            f"batch 0 is {describe(batch)}: the second is taken as the labels, and what follows it is left "
            f"out. To choose otherwise, {USE_ADAPT}",
            UnusedDataWarning,
            stacklevel=level_of_the_caller(),
        )
    return batch[:2]


def _as_labels(value: Any) -> Tensor | None:
    """Labels in a tensor, an array or a list of numbers, as a tensor; None if it is none of these."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, (list, tuple)) and not hasattr(value, "__array__"):
        return None
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):  # texts, say, or lists of several lengths
        return None


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
    return _as_labels(batch[1]) if isinstance(batch, (list, tuple)) and len(batch) > 1 else None


def _named_labels(inputs: Inputs) -> Tensor | None:
    """The labels in a mapping, or None."""
    if isinstance(inputs, Tensor):
        return None
    found = (_as_labels(inputs[name]) for name in LABELS if name in inputs)
    return next((each for each in found if each is not None), None)


def _inputs(
    batch: Any,
    number: int,
    model: nn.Module,
    form: InputForm | None,
    positions: bool,
    width: int | None,
) -> tuple[Inputs, Tensor | None]:
    """Inputs as the model takes them, and labels or None, from (inputs, labels), (inputs,), or the batch."""
    batch = _without_rest(batch, number, model)
    parts = batch if isinstance(batch, (list, tuple)) else (batch,)
    inputs = by_place(parts[0]) if parts else None
    if not 1 <= len(parts) <= 2 or not isinstance(inputs, (Tensor, Mapping)):
        raise DataError(
            f"batch {number} is {describe(batch)}: expected inputs, or (inputs, labels). {SEVERAL_INPUTS}. "
            f"Otherwise {USE_ADAPT}"
        )
    named, inputs = _named_labels(inputs), as_arguments(without_labels(inputs), model, number)
    if len(parts) == 1:
        return inputs, named
    labels = _as_labels(parts[1])
    if labels is None and (parts[1] is None or _are_texts(parts[1])):  # names of files, say
        return inputs, None
    # As many integers as there are token ids may be labels or a mask, unless `fit` took such inputs alone.
    known = form is not None and InputForm.of(inputs).names == form.names
    if labels is not None and known and width is not None:
        rows = labels.shape == (len(labels), width) or (width == 1 and labels.dim() == 1)
        if rows and len(labels) == row_count(inputs):
            return inputs, labels
    if labels is None or not _may_be_labels(labels, inputs, positions, known):
        kind = "one integer for each position" if positions else "one integer for each row of the inputs"
        raise DataError(
            f"batch {number} is {describe(batch)}: the second cannot be labels, {kind} (or 0.0 and 1.0). "
            f"{SEVERAL_INPUTS}"
        )
    return inputs, labels


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(type(each) is str for each in value)


def _may_be_labels(second: Tensor, inputs: Inputs, positions: bool, known: bool) -> bool:
    """Whether a tensor may be the labels of these inputs: (n,) or (n, 1), of integers or of 0.0 and 1.0.

    With positions it is (n, …), but not of the shape of integer inputs, for which it may be a mask. `known`:
    these inputs are all that the model takes.
    """
    if second.is_complex() or not second.dim():
        return False
    tensors = _tensors_with_rows(inputs)
    rows = {len(each) for each in tensors}
    if positions:
        fits = known or all(each.shape != second.shape for each in tensors if not each.is_floating_point())
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
