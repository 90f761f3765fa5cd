"""Pairs of inputs, one of which is preferred, as loaders have them.

(chosen, rejected); ((a, b), labels) or (a, b, labels) with the label 1 if a is preferred and 0 if b is; or a
mapping with the keys of both, "input_ids_chosen" and "input_ids_rejected". Each input is a tensor, a mapping,
or a tuple of positional arguments. Tokenised texts of both sides may be padded to different lengths.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from bitbayes.errors import DataError, UnusedDataWarning, level_of_the_caller
from bitbayes.model.loaders.arguments import USE_ADAPT
from bitbayes.model.loaders.batches import (
    LABELS,
    by_place,
    describe,
    labels_of,
    row_count,
    without_labels,
)
from bitbayes.model.loaders.sides import SIDES, joined_sides, side_of, sides_of

EXPECTED = (
    "expected two inputs, (chosen, rejected), or ((a, b), labels) with the label 1 where a is preferred, or "
    "a mapping with keys such as 'input_ids_chosen' and 'input_ids_rejected'"
)


class PairAdapter:
    """Makes (pair, labels) of a loader's batch: the `adapt` of a model of pairs.

    Args:
        adapt: the user's, which is called first, or None.
    """

    gives_pairs = True

    def __init__(self, adapt: Callable[..., object] | None = None) -> None:
        self.adapt = adapt

    def __call__(self, batch: Any) -> tuple[dict[str, Any], Tensor]:
        return labelled_pair(batch if self.adapt is None else self.adapt(batch))


def labelled_pair(batch: Any) -> tuple[dict[str, Any], Tensor]:
    """The mapping of a pair (`sides.py`) and its labels, which are all 1 if the batch has none."""
    *inputs, labels = _parts(batch)
    first, second = map(without_labels, inputs)  # of a language model, which no reward has
    rows = [row_count(each) for each in (first, second)]
    if rows[0] != rows[1]:
        raise DataError(
            f"the first inputs of a batch of pairs have {rows[0]} rows, and the second have {rows[1]}: "
            "expected one pair in each row"
        )
    return joined_sides(first, second), torch.ones(rows[0]).long() if labels is None else labels


def pair_data(data: Any) -> Any:
    """One pair as a mapping; loaders unchanged.

    Args:
        data: what a prediction was asked for: a tuple or a mapping is one pair, and a list holds batches.
    """
    if isinstance(data, Tensor):
        raise DataError(
            f"the input is one tensor of shape {tuple(data.shape)}, and a preference is between two: give "
            "(a, b), or call `reward`"
        )
    return labelled_pair(data)[0] if isinstance(data, (tuple, Mapping)) else data


def is_pair(data: Any) -> bool:
    """Whether data are one pair, and not inputs or a loader of them."""
    if isinstance(data, Mapping):
        return any(side_of(name) for name in data)
    return isinstance(data, tuple)


def _parts(batch: Any) -> tuple[Any, Any, Tensor | None]:
    """Both inputs, and the labels or None."""
    if isinstance(batch, Mapping):
        return (*_named(batch), labels_of(batch))
    parts = _without_rest(batch) if isinstance(batch, (list, tuple)) else []
    if len(parts) == 3:
        parts = [(parts[0], parts[1]), parts[2]]
    if len(parts) in (1, 2) and (pair := _pair(parts[0])) is not None:
        several = len(parts) == 2 and isinstance(parts[1], (list, tuple, Mapping)) and _is_input(parts[1])
        labels = None if several else labels_of(parts)
        if len(parts) == 1 or labels is not None:
            return (*pair, labels)
    if len(parts) == 2:
        first, second = map(by_place, parts)
        tensors = isinstance(first, Tensor) and isinstance(second, Tensor)
        if tensors and first.dim() != second.dim():
            raise DataError(
                f"the batch is {describe(batch)}, which look like inputs and labels of a classifier, and a "
                f"preference is between two inputs: {EXPECTED}"
            )
        if tensors or (isinstance(first, Mapping) and isinstance(second, Mapping)):
            return first, second, None
    raise DataError(f"the batch is {describe(batch)}: {EXPECTED}. Otherwise {USE_ADAPT}")


def _without_rest(batch: list[Any] | tuple[Any, ...]) -> list[Any]:
    """(pair, labels) of (pair, labels, …), (a, b, labels) of (a, b, labels, …), and any other unchanged."""
    for count, which in ((2, "second"), (3, "third")):
        *inputs, given = batch[:count]
        labels = None if isinstance(by_place(given), Mapping) else labels_of((None, given))
        known = _pair(inputs[0] if count == 2 else inputs) is not None
        # A vector beside inputs that are none: four tensors may be two inputs of two tensors each.
        clear = labels is not None and (
            count == 2 or (labels.dim() == 1 and not any(map(_is_vector, inputs)))
        )
        if len(batch) > count and known and clear:
            warnings.warn(
                f"the batch is {describe(batch)}: the {which} is taken as the labels, and what follows it is "
                f"left out: every pair counts alike. To choose otherwise, {USE_ADAPT}",
                UnusedDataWarning,
                stacklevel=level_of_the_caller(),
            )
            return [*batch[:count]]
    return [*batch]


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() < 2


def _is_input(value: Any) -> bool:
    return isinstance(by_place(value), (Tensor, Mapping))


def _pair(value: Any) -> tuple[Any, Any] | None:
    """Both inputs, if this is a pair and not one input."""
    if isinstance(value, Mapping):
        return _named(value) if any(side_of(name) for name in value) else None
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_input, value)):
        first, second = map(by_place, value)
        return first, second
    return None


def _named(batch: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Both inputs of a mapping with names of both sides, or with a mapping for each side."""
    left = [name for name in batch if side_of(name) is None and name not in LABELS]
    sides = {name: each for name, each in batch.items() if side_of(name)}
    if all(isinstance(sides.get(side), Mapping) for side in SIDES):
        sides = joined_sides(*(sides[side] for side in SIDES))
    found = sides_of(sides)
    if found is None or not _same_names(found):
        raise DataError(f"the batch is a mapping with the keys {sorted(batch, key=str)}: {EXPECTED}")
    if left:
        warnings.warn(
            f"the keys {left} belong to neither of two inputs, and are left out: every pair counts alike. To "
            f"use them, {USE_ADAPT}",
            UnusedDataWarning,
            stacklevel=level_of_the_caller(),
        )
    return found


def _same_names(sides: Iterable[Any]) -> bool:
    names = [{*each} if isinstance(each, Mapping) else None for each in sides]
    return names[0] == names[1]
