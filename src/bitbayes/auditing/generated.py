"""Noise and far-away inputs like those of the data, in one tensor or in a mapping with floats."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bitbayes.model import Batch, Inputs, row_count
from bitbayes.outliers import far_away, uniform_noise


def is_scalable(x: Inputs) -> bool:
    """Return whether δ·x is a valid input. Token ids cannot be scaled.

    >>> ids, x = torch.ones(2, 5, dtype=torch.int64), torch.rand(2, 3)
    >>> is_scalable(x), is_scalable({"x": x, "ids": ids}), is_scalable(ids)
    (True, True, False)
    """
    return any(_scales(each, x) for each in (x.values() if isinstance(x, Mapping) else [x]))


def scaled(x: Inputs, delta: float) -> Inputs:
    """Return δ·x; of a mapping, its floating-point tensors are scaled."""
    if isinstance(x, Tensor):
        return far_away(x, delta)
    return {name: far_away(each, delta) if _scales(each, x) else each for name, each in x.items()}


def noise_like(x: Inputs, n: int, generator: torch.Generator) -> Inputs:
    """Return n rows of uniform noise over the range of x.

    Of a mapping, each floating-point tensor has noise over its own range. Beside it are other rows of x.
    """
    if isinstance(x, Tensor):
        return uniform_noise(x, n, generator=generator)
    rows = torch.arange(n) % row_count(x)

    def drawn(value: Any) -> Any:
        if _scales(value, x):
            return uniform_noise(value, n, generator=generator)
        return value[rows.to(value.device)] if has_rows(value, x) else value

    return {name: drawn(each) for name, each in x.items()}


def first_rows(parts: list[Inputs], n: int) -> Inputs:
    """Return the first n rows of some batches, joined."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)[:n]  # type: ignore[arg-type]
    joined = {
        name: torch.cat([part[name] for part in parts]) if has_rows(each, first) else each
        for name, each in first.items()
    }
    return pieces(joined, n)[0]


def pieces(x: Inputs, rows: int) -> list[Inputs]:
    """Return the inputs in parts of at most that many rows."""
    return [part.inputs for part in Batch(x, None, "the input").split(rows)]


def has_rows(value: Any, x: Inputs) -> bool:
    """Return whether a value of a mapping has one row for each input."""
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == row_count(x)


def _scales(value: Any, x: Inputs) -> bool:
    return has_rows(value, x) and bool(value.is_floating_point())
