"""Both inputs of a pair in one mapping, as TRL names them: "input_ids_chosen" and "input_ids_rejected".

So a pair is a mapping of tensors with one row for each point, like other inputs of several tensors. If each
input is one tensor, the names are "chosen" and "rejected" alone, and "0_chosen" is a positional argument.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

CHOSEN, REJECTED = SIDES = ("chosen", "rejected")


def joined_sides(first: Any, second: Any) -> dict[str, Any]:
    """Two inputs, tensors or mappings, as the mapping of a pair.

    >>> sorted(joined_sides({"ids": 1}, {"ids": 2}).items()), joined_sides(1, 2)
    ([('ids_chosen', 1), ('ids_rejected', 2)], {'chosen': 1, 'rejected': 2})
    """
    found: dict[str, Any] = {}
    for side, inputs in zip(SIDES, (first, second), strict=True):
        if isinstance(inputs, Mapping):
            found |= {f"{name}_{side}": each for name, each in inputs.items()}
        else:
            found[side] = inputs
    return found


def side_of(name: Any) -> str | None:
    """The side that an entry of this name belongs to, or None."""
    return next((side for side in SIDES if name == side or str(name).endswith(f"_{side}")), None)


def sides_of(inputs: Any) -> tuple[Any, Any] | None:
    """Both inputs of the mapping of a pair; None if it is no such mapping.

    >>> sides_of({"ids_chosen": 1, "ids_rejected": 2}), sides_of({"chosen": 1, "rejected": 2})
    (({'ids': 1}, {'ids': 2}), (1, 2))
    """
    if not isinstance(inputs, Mapping) or {side_of(name) for name in inputs} != {*SIDES}:
        return None
    first, second = (_one(inputs, side) for side in SIDES)
    return first, second


def _one(inputs: Mapping[Any, Any], side: str) -> Any:
    if side in inputs:
        return inputs[side]
    names = {name: str(name).removesuffix(f"_{side}") for name in inputs if side_of(name) == side}
    return {int(own) if own.isdigit() else own: inputs[name] for name, own in names.items()}


def pair_for(model: nn.Module, inputs: Tensor | Mapping[Any, Any]) -> tuple[Any, Any] | None:
    """Both inputs of a pair for a model of pairs; None for any other model, and for one input."""
    adapt = getattr(type(model), "_adapt_batch", None)
    return sides_of(inputs) if getattr(adapt, "gives_pairs", False) else None
