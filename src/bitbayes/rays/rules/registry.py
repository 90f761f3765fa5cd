"""The table of rules, and helpers for them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from bitbayes.rays.ray_tensor import RayTensor, unknown_operation

aten = torch.ops.aten
Rule = Callable[..., Any]
# aten operation → its rule
RULES: dict[Any, Rule] = {}
# The operations that are affine in their values, whatever these are.
AFFINE: set[Any] = set()


def rule(*names: str, in_place: bool = False, affine: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for the aten operations of these names; with `in_place` also for each `name_`.

    `affine` says that the operation makes no choice: `CellTensor` uses such rules, too. Names that this
    version of torch does not have are skipped.
    """

    def register(function: Rule) -> Rule:
        found = {}
        for name in names:
            if hasattr(aten, name):
                found[getattr(aten, name)] = function
            if in_place and hasattr(aten, f"{name}_"):
                found[getattr(aten, f"{name}_")] = _in_place(getattr(aten, name), function)
        RULES.update(found)
        AFFINE.update(found if affine else ())
        return function

    return register


def _in_place(operation: Any, function: Rule) -> Rule:
    """Return a rule that writes the result of `function` into its first argument, and so into its views."""

    def write(func: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(target, RayTensor):
            raise unknown_operation(func, "writes into a plain tensor: make that one with `x.new_zeros(...)`")
        overload = getattr(operation, func._overloadname, None) or operation.default
        result = function(overload, target, *args, **kwargs)
        target.slope.copy_(result.slope)
        target.intercept.copy_(result.intercept)
        target.by_row = target.by_row and result.by_row
        return target

    return write


def rays_in(*args: Any) -> list[RayTensor]:
    """Return all ray tensors among the arguments, also those inside lists."""
    return [leaf for leaf in tree_leaves(args) if isinstance(leaf, RayTensor)]


def slopes(*args: Any) -> Any:
    """Return the arguments with each ray tensor replaced by its slope, and each constant tensor by zeros."""
    like = rays_in(args)[0].slope
    return map_real(lambda x: x.slope if isinstance(x, RayTensor) else torch.zeros_like(x.to(like)), args)


def intercepts(*args: Any) -> Any:
    """Return the arguments with each ray tensor replaced by its intercept. Constants stay as they are."""
    like = rays_in(args)[0].intercept
    return map_real(lambda x: x.intercept if isinstance(x, RayTensor) else x.to(like), args)


def map_real(function: Callable[[Any], Any], args: Any) -> Any:
    """Apply `function` to each tensor of real numbers among the arguments, not to indices or masks."""
    return tree_map(lambda x: function(x) if isinstance(x, Tensor) and x.is_floating_point() else x, args)


def as_constant(value: Any, like: Tensor) -> Any:
    """Return a constant in the dtype and on the device of `like`. A number or None stays as it is."""
    return value.to(like) if isinstance(value, Tensor) else value
