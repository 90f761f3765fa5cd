"""What a model takes of a batch: the arguments of its `forward`, on its device and in its precision."""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError, UnusedDataWarning, level_of_the_caller
from bitbayes.model.loaders.sides import joined_sides, pair_for

USE_ADAPT = "give a function of a batch that returns (inputs, labels): Laplace(model, adapt=…)"


class Arguments(NamedTuple):
    """The arguments of a `forward`: the names of all, of those without a default, and of positional ones."""

    names: list[str]
    required: list[str]
    positional: list[str]


def arguments_of(model: nn.Module) -> Arguments | None:
    """The arguments of a model; None if it takes any, or if nothing is known of them."""
    # Such a hook may take other arguments than `forward`.
    if getattr(model, "_forward_pre_hooks_with_kwargs", None):
        return None
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # of a function that is not written in Python
        return None
    if any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters):
        return None
    return Arguments(
        [each.name for each in parameters if each.kind != each.POSITIONAL_ONLY],
        [each.name for each in parameters if each.default is each.empty],
        [each.name for each in parameters if each.kind != each.KEYWORD_ONLY],
    )


def takes_one_input(model: nn.Module) -> bool:
    """Whether a call of the model takes one input, and no other beside it."""
    known = arguments_of(model)
    return known is not None and len(known.positional) == 1


def as_arguments(inputs: Tensor | Mapping[Any, Any], model: nn.Module, number: int) -> Any:
    """The inputs as the model takes them, on its device; values that are no tensors are not changed.

    Keys that the model does not take are left out, with a warning at batch 0. If it takes none of the keys,
    and one tensor has columns, that is the input: {"image": x, "id": i} for `forward(self, x)`.
    """
    if (pair := pair_for(model, inputs)) is not None:
        first, second = pair
        return joined_sides(as_arguments(first, model, number), as_arguments(second, model, -1))
    if isinstance(inputs, Tensor):
        return _moved(inputs, model)
    taken = _taken(inputs, model, number)
    if isinstance(taken, Tensor):
        return _moved(taken, model)
    return {name: _moved(value, model) for name, value in taken.items()}


def _taken(inputs: Mapping[Any, Any], model: nn.Module, number: int) -> Tensor | Mapping[Any, Any]:
    known = arguments_of(model)
    if known is None:
        return inputs
    taken = {key: each for key, each in inputs.items() if key in known.names or isinstance(key, int)}
    left = [key for key in inputs if key not in taken]
    if not left:
        return inputs
    found: Tensor | dict[Any, Any] = taken
    if not taken:
        columns = [key for key in left if isinstance(inputs[key], Tensor) and inputs[key].dim() > 1]
        if len(columns) != 1 or known.required[1:]:
            raise _refusal(left, known)
        found = inputs[columns[0]]
        left.remove(columns[0])
    elif len(taken) < len(known.required):
        raise _refusal([*inputs], known)
    if left and number == 0:
        warnings.warn(
            f"the model takes {known.names}, and the keys {left} are left out. To use them, {USE_ADAPT}",
            UnusedDataWarning,
            stacklevel=level_of_the_caller(),
        )
    return found


def _refusal(keys: list[Any], known: Arguments) -> DataError:
    return DataError(
        f"the inputs are a mapping with the keys {keys}, and the model takes {known.names}: name them so, or "
        f"{USE_ADAPT}"
    )


def _moved(value: Any, model: nn.Module) -> Any:
    """A tensor on the model's device; from float64 it is converted if nothing of the model is in float64."""
    if not isinstance(value, Tensor):
        return value
    dtype = value.dtype
    if dtype == torch.float64:
        floats = [each.dtype for each in (*model.parameters(), *model.buffers()) if each.is_floating_point()]
        dtype = floats[0] if floats and torch.float64 not in floats else dtype
    return value.to(model_device(model), dtype)


def model_device(model: nn.Module) -> torch.device:
    """The device of the model's first parameter (the CPU for a model without any)."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
