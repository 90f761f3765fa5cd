"""Data as users have them: loaders, arrays, mappings, with metadata. All of it is read as tensors.

Errors name the set, and the batch where it is known.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import length_hint
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitbayes.auditing.data_checks import InputHashes
from bitbayes.auditing.generated import pieces
from bitbayes.auditing.regression import INSTEAD
from bitbayes.auditing.words import printable
from bitbayes.errors import BitbayesError, DataError, naming
from bitbayes.model import Batch, Inputs, check_loader, input_batches, row_count, split_batch
from bitbayes.model.loaders.arguments import takes_one_input
from bitbayes.model.loaders.batches import LABELS, by_place, labels_of, without_labels

ROWS_PER_PREDICTION = 256


class Anything(nn.Module):
    """Takes all inputs: the model of a set that no network reads."""

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """Take them."""


@dataclass(frozen=True)
class Form:
    """What the inputs of the test data are like, so that a function gets all inputs as they would be.

    arrays: whether they are arrays of numpy. Otherwise they are tensors.
    places: whether they are a tuple.
    device: of the tensors.
    """

    arrays: bool = False
    places: bool = False
    device: str = "cpu"

    @classmethod
    def of(cls, inputs: Any) -> Self:
        """The form of inputs as they were given."""
        parts = inputs.values() if isinstance(inputs, Mapping) else inputs
        parts = list(parts) if isinstance(inputs, (Mapping, list, tuple)) else [parts]
        device = next((str(part.device) for part in parts if isinstance(part, Tensor)), "cpu")
        return cls(any(map(is_array, parts)), isinstance(inputs, (list, tuple)), device)

    def restore(self, x: Inputs) -> Any:
        """Return inputs in this form."""
        if isinstance(x, Tensor):
            return x.cpu().numpy() if self.arrays else x.to(self.device)
        parts = {name: self.restore(each) if isinstance(each, Tensor) else each for name, each in x.items()}
        return tuple(parts.values()) if self.places else parts


class LabelledSet:
    """A set of labelled points as an iterable of batches of tensors, from a loader or from arrays.

    A loader yields (x, y), (x, y, …) or mappings with labels, as `Laplace.fit` takes them. Arrays are (x, y)
    or a mapping with labels: tensors, or arrays of numpy.

    Args:
        name: "train", "validation" or "test", for messages.
        data: the loader or the arrays.
        network: what reads the batches, or None. Without one, all but the first two parts are left out.
        column: the column of metadata to read, or None.
    """

    def __init__(self, name: str, data: Any, network: nn.Module | None, column: str | None = None) -> None:
        if isinstance(data, Iterator):
            raise DataError(
                f"{name!r} is a {type(data).__name__}, which can be read only once: "
                "give a DataLoader, a list of batches, or arrays (x, y)"
            )
        self.name, self.network, self.data, self.column = name, network, data, column
        self.values: list[str] = []  # those of the column, in the order of the last pass
        # Of the first pass over all batches, for the alerts; None before it.
        self.hashes: InputHashes | None = None
        self.labels: set[int] = set()
        with naming(repr(name)):
            self.loader = check_loader(_parts(data, column))

    def __length_hint__(self) -> int:
        return length_hint(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield each batch as it was given, with tensors in the place of arrays."""
        classes: set[int] = set()
        rows, hashes, self.values = 0, InputHashes(), []
        for number, given in enumerate(_reading(self.name, self.loader)):
            with naming(f"{self.name!r}, batch {number}"):
                values: list[str] = []
                if self.column is not None:
                    given, values = split_column(given, self.column)
                batch = as_tensors(given)
                if isinstance(batch, tuple) and self.network is None:
                    batch = batch[:2]
                labels = labels_of(batch)
                if labels is not None:
                    check_classes(labels)
                    if self.column is not None and len(values) != len(labels):
                        raise _of_another_length(self.column, len(values), len(labels))
                    self.values += values
                    rows += len(labels) if labels.dim() else 0
                    classes.update(labels.unique().tolist())  # type: ignore[no-untyped-call]
            if self.hashes is None and labels is not None and labels.dim():  # now: the model may change them
                hashes.add(
                    without_labels(batch) if isinstance(batch, Mapping) else by_place(batch[0]), len(labels)
                )
            yield batch
        self.hashes, self.labels = self.hashes or hashes, self.labels or classes
        if len(classes) == 1:
            (label,) = classes
            raise DataError(
                f"{self.name!r}: the label of all {rows:,} inputs is {label:g}: an audit needs inputs of two "
                "classes or more. If the data are sorted by class, shuffle them before they are split"
            )

    def batches(self) -> Iterator[Batch]:
        """The inputs and labels of each batch, (n,) on the CPU."""
        model = self.network or Anything()
        number = -1
        for number, given in enumerate(self):
            with naming(repr(self.name)):
                inputs, labels = split_batch(given, number, model)
                n, flat = row_count(inputs), labels.reshape(-1).long().cpu()
                if len(flat) != n:
                    raise DataError(
                        f"batch {number} has {n} inputs and labels of shape {tuple(labels.shape)}: an audit "
                        "needs the class of each input, (n,). For several labels, and for positions, use "
                        "`Laplace.evaluate`"
                    )
            yield Batch(inputs, flat, f"batch {number}")
        if number < 0:
            raise DataError(f"{self.name!r}: the loader is empty: it yielded no batch")

    def first(self) -> Batch:
        """The first batch. This finds an unsuitable loader before any work is done."""
        return next(self.batches())

    def form(self) -> Form:
        """The form in which the inputs are given."""
        given = next(iter(self.data)) if is_loader(self.data) else self.data
        return Form.of(without_labels(given) if isinstance(given, Mapping) else given[0])


class OutlierInputs:
    """Inputs without labels as an iterable of tensors, in parts that are small enough to predict at once.

    Args:
        data: a tensor, an array, a mapping of such, (x, y), or a loader of one of them. In place of labels
            there may be texts: the names of the inputs.
        network: what reads the batches, or None.
    """

    def __init__(self, data: Any, network: nn.Module | None) -> None:
        self.data, self.network = data, network
        self.names: list[str | None] = []  # of all inputs of the last pass; None where it is unknown

    def __iter__(self) -> Iterator[Any]:
        self.names = []
        if not is_loader(self.data):
            inputs, names = _split_names(self.data)
            self.names += names
            yield from pieces(as_tensors(inputs), ROWS_PER_PREDICTION)
            return
        one_input = self.network is None or takes_one_input(self.network)
        for given in self.data:
            if isinstance(given, (list, tuple)) and not one_input:
                batch = as_tensors(given)
                self.names += [None] * row_count(by_place(batch))
            else:
                inputs, names = _split_names(given)
                self.names += names
                batch = as_tensors(inputs)
            yield batch

    def batches(self) -> Iterator[Batch]:
        """The inputs of each batch."""
        for batch in input_batches(self, Anything()):
            yield replace(batch, inputs=copied(batch.inputs))


def copied(given: Any) -> Any:
    """Return a batch, or a part of it, with tensors of its own.

    A predictor may change its inputs in place, and a loader may write each batch into the same tensors.

    >>> x = torch.ones(2)
    >>> copied((x, "a path"))[0] is x
    False
    """
    if isinstance(given, Tensor):
        return given.clone()
    if isinstance(given, Mapping):
        return {name: copied(each) for name, each in given.items()}
    if isinstance(given, (list, tuple)):
        parts = map(copied, given)
        return list(parts) if isinstance(given, list) else tuple(parts)
    return given


def is_array(value: Any) -> bool:
    """Return whether a value is an array of numpy, or can be made one."""
    return hasattr(value, "__array__") and not isinstance(value, Tensor)


def as_tensors(given: Any) -> Any:
    """Return a batch, or a part of it, with tensors in the place of arrays. A list becomes a tuple."""
    if is_array(given):
        array = given.__array__()
        try:
            return torch.as_tensor(array.copy())  # an array may be read-only, or have negative strides
        except TypeError as error:
            raise DataError(
                f"an array holds {array.dtype}: give numbers. Labels are the numbers of the classes, 0, 1, …"
            ) from error
    if isinstance(given, Mapping):
        return {name: _as_column(name, each) for name, each in given.items()}
    if isinstance(given, (list, tuple)) and any(_holds_arrays(part) for part in given):
        return tuple(as_tensors(part) if _holds_arrays(part) else part for part in given)
    return tuple(given) if isinstance(given, (list, tuple)) else given


def _as_column(name: Any, value: Any) -> Any:
    """Return what a mapping holds, as tensors where it is numbers. Texts, such as metadata, become a list."""
    if is_array(value) and value.__array__().dtype.kind in "USO" and name not in LABELS:
        return value.__array__().tolist()
    return as_tensors(value) if is_array(value) else value


def is_loader(data: Any) -> bool:
    """Return whether data are batches, and neither inputs, nor arrays (x, y)."""
    return not isinstance(data, (Tensor, Mapping)) and not is_array(data) and not _are_arrays(data)


def check_classes(labels: Tensor) -> None:
    """Raise unless the labels are the numbers of classes."""
    if labels.is_complex() or labels.is_floating_point():
        if not bool(labels.isfinite().all()):
            raise DataError("a label is NaN or infinite: remove that point")
        if bool((labels != labels.round()).any()):
            example = labels[labels != labels.round()][0].item()
            raise DataError(f"a label is {example:.4g}, and classes are 0, 1, …: {INSTEAD}")
    if labels.numel() and bool((labels < 0).any()):
        raise DataError(f"a label is {labels.min().item():g}: classes are 0, 1, …")


def _holds_arrays(part: Any) -> bool:
    if isinstance(part, Mapping):
        part = list(part.values())
    return is_array(part) or (isinstance(part, (list, tuple)) and any(map(is_array, part)))


def split_column(given: Any, column: str) -> tuple[Any, list[str]]:
    """Return a batch, or whole arrays, without metadata, and the values of a column of these as texts.

    A mapping has the column beside its inputs, and keeps it. Of (x, y, meta) the third part is a mapping with
    the column, or the column itself.

    >>> split_column(({"x": 1}, 2, {"site": ["north", "south"]}), "site")[1]
    ['north', 'south']
    """
    if isinstance(given, Mapping):
        if column not in given:
            names = ", ".join(repr(name) for name in given)
            raise DataError(f"there is no column {column!r}: the data have {names}")
        return given, _as_texts(given[column], column)
    if not isinstance(given, (list, tuple)) or len(given) < 3:
        raise DataError(
            f"there is no column {column!r}: give mappings that have it, or (x, y, meta), where meta is a "
            "mapping that has it, or the column itself"
        )
    x, y, meta, *_ = given
    if hasattr(meta, "keys"):  # a mapping, or a table of pandas
        if column not in meta:
            names = ", ".join(repr(name) for name in meta.keys())  # noqa: SIM118 - a table's rows are no keys
            raise DataError(f"there is no column {column!r}: the third part has {names}")
        meta = meta[column]
    return (x, y), _as_texts(meta, column)


def _of_another_length(column: str, values: int, inputs: int) -> DataError:
    return DataError(f"the column {column!r} has {values:,} values for {inputs:,} inputs")


def _as_texts(values: Any, column: str) -> list[str]:
    found = values.tolist() if isinstance(values, Tensor) or is_array(values) else values
    if not isinstance(found, (list, tuple)) or any(isinstance(each, (list, tuple)) for each in found):
        kind = (
            f"has shape {tuple(values.shape)}" if hasattr(values, "shape") else f"is a {type(found).__name__}"
        )
        raise DataError(f"the column {column!r} {kind}: give one value for each input")
    return [f"{each:g}" if isinstance(each, float) else printable(each) for each in found]


def _split_names(given: Any) -> tuple[Any, list[str | None]]:
    """Return outliers without their labels, and their names: texts, or numbers as "label 7"."""
    labels: Any = None
    if isinstance(given, Mapping):
        labels = next((given[name] for name in LABELS if name in given), None)
        given = without_labels(given)
    elif isinstance(given, (list, tuple)) and given:
        labels, given = given[1] if len(given) > 1 else None, given[0]
    n = row_count(by_place(as_tensors(given)))
    found = labels.tolist() if isinstance(labels, Tensor) or is_array(labels) else labels
    if not isinstance(found, (list, tuple)) or len(found) != n:
        return given, [None] * n
    return given, [
        printable(each) if isinstance(each, str) else f"label {each}" if isinstance(each, int) else None
        for each in found
    ]


def _are_arrays(data: Any) -> bool:
    """Return whether data are (x, y, …), and not a tuple of batches: the second part is labels, or names."""
    if not isinstance(data, tuple) or len(data) < 2:
        return False
    second = data[1]
    return (
        isinstance(second, Tensor) or is_array(second) or (isinstance(second, list) and _are_labels(second))
    )


def _are_labels(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(each, (int, float, str)) for each in values)


def _parts(data: Any, column: str | None) -> Any:
    """Return arrays as batches of a few rows, and a loader unchanged."""
    if isinstance(data, Mapping):
        return _mapping_parts(as_tensors(data))
    if not _are_arrays(data):
        return data
    values: list[str] = []
    if column is not None:
        data, values = split_column(data, column)
    inputs, labels = by_place(as_tensors(data[0])), _labels(data[1])
    n = row_count(inputs)
    if labels.dim() == 0 or len(labels) != n:
        raise DataError(
            f"{n} inputs and labels of shape {tuple(labels.shape)}: give one label for each input"
        )
    if column is not None and len(values) != n:
        raise _of_another_length(column, len(values), n)
    parts = Batch(inputs, labels, "").split(ROWS_PER_PREDICTION)
    given = [(part.inputs, part.labels) for part in parts]
    if column is None:
        return given
    starts = range(0, n, ROWS_PER_PREDICTION)
    return [
        (*part, values[start : start + ROWS_PER_PREDICTION])
        for start, part in zip(starts, given, strict=True)
    ]


def _labels(given: Any) -> Tensor:
    if isinstance(given, list) and any(isinstance(each, str) for each in given):
        raise DataError("the labels are texts: give the numbers of the classes, 0, 1, …")
    return torch.as_tensor(as_tensors(given))


def _mapping_parts(data: Mapping[Any, Any]) -> list[Any]:
    """Split a mapping of columns. Lists that have a value for each input are split, too."""
    n = row_count(data)
    lists = {name: each for name, each in data.items() if isinstance(each, (list, tuple)) and len(each) == n}
    parts: list[Any] = []
    parts += pieces({name: each for name, each in data.items() if name not in lists}, ROWS_PER_PREDICTION)
    return [
        {**part, **{name: each[start : start + ROWS_PER_PREDICTION] for name, each in lists.items()}}
        for start, part in zip(range(0, n, ROWS_PER_PREDICTION), parts, strict=True)
    ]


def _reading(name: str, loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a loader. An error of its own becomes one that names the set and the batch."""
    batches, number = iter(loader), 0
    while True:
        try:
            given = next(batches)
        except StopIteration:
            return
        except BitbayesError:
            raise
        except Exception as error:
            kind = type(error).__name__
            raise DataError(f"{name!r}, batch {number}: the loader raised {kind}: {error}") from error
        yield copied(given)
        number += 1
