"""What each aten operation does to values at infinity.

A rule has the operation's own arguments. Where those are plain tensors (weights, biases) they count as
constants: their slope is 0, and they are taken in the precision of the value they meet. The model itself is
neither changed nor copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from bitbayes.rays.ray_tensor import RULES, SLOPE_NOISE, RayTensor, unknown_operation, without_noise

aten = torch.ops.aten
Rule = Callable[..., Any]


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the operations of these names, as far as this version of torch has them."""

    def register(function: Rule) -> Rule:
        RULES.update({getattr(aten, name): function for name in names if hasattr(aten, name)})
        return function

    return register


def in_place(*names: str) -> None:
    """Register `name_` for each name: the same, written into the first argument and so into all its views."""
    for name in names:
        operation = getattr(aten, name)

        def write(func: Any, target: Any, *args: Any, operation: Any = operation, **kwargs: Any) -> Any:
            if not isinstance(target, RayTensor):
                raise unknown_operation(
                    func, "writes into a plain tensor: make that one with `x.new_zeros(...)`"
                )
            overload = getattr(operation, func._overloadname, None) or operation.default
            result = RULES[operation](overload, target, *args, **kwargs)
            target.slope.copy_(result.slope)
            target.intercept.copy_(result.intercept)
            target.by_row = target.by_row and result.by_row
            return target

        RULES[getattr(aten, f"{name}_")] = write


def rays_in(*args: Any) -> list[RayTensor]:
    return [leaf for leaf in tree_leaves(args) if isinstance(leaf, RayTensor)]


def slopes(*args: Any) -> Any:
    """The arguments with each value replaced by its slope, which is 0 for constants."""
    like = rays_in(args)[0].slope

    def slope(value: Any) -> Any:
        if isinstance(value, RayTensor):
            return value.slope
        if isinstance(value, Tensor) and value.is_floating_point():
            return torch.zeros_like(value, dtype=like.dtype, device=like.device)
        return value

    return tree_map(slope, args)


def intercepts(*args: Any) -> Any:
    """The arguments with each value replaced by its intercept, which for constants is all there is."""
    ray = rays_in(args)[0]
    return tree_map(
        lambda value: value.intercept if isinstance(value, RayTensor) else ray.constant(value), args
    )


# ---- changes of shape


@rule(
    *("view", "_unsafe_view", "_reshape_alias", "permute", "transpose", "t", "squeeze", "unsqueeze"),
    *("expand", "repeat", "slice", "select", "split", "split_with_sizes", "unbind", "index", "index_select"),
    *("flip", "roll", "unfold", "pixel_shuffle", "alias", "detach", "clone", "lift_fresh", "cat", "stack"),
    *("upsample_nearest1d", "upsample_nearest2d", "reflection_pad1d", "reflection_pad2d"),
)
def change_shape(func: Any, *args: Any, **kwargs: Any) -> Any:
    """The same numbers elsewhere."""
    rays = rays_in(args)
    by_row = all(ray.by_row for ray in rays)
    slope, intercept = func(*slopes(*args), **kwargs), func(*intercepts(*args), **kwargs)
    if isinstance(slope, Tensor):
        return rays[0].like(slope, intercept, by_row and _keeps_rows(func, args, kwargs, 0))
    return [
        rays[0].like(*halves, by_row and _keeps_rows(func, args, kwargs, number))
        for number, halves in enumerate(zip(slope, intercept, strict=True))
    ]


def _keeps_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: int) -> bool:
    """Does the first dimension of that output count the inputs, as that of each argument does?

    The operation itself answers: it moves tensors that hold at each place the number of their row.
    """
    alpha = rays_in(args)[0].ray_pass.alpha
    numbers = torch.arange(len(alpha), dtype=torch.float32, device=alpha.device)

    def row_numbers(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.dim() == 0 or len(value) != len(alpha):
            return torch.full(value.shape, -1.0, device=alpha.device)
        shown = numbers.reshape(-1, *[1] * (value.dim() - 1)).expand(value.shape)
        return torch.empty_strided(value.shape, value.stride(), device=alpha.device).copy_(shown)

    moved = func(*tree_map(row_numbers, args), **kwargs)
    moved = moved if isinstance(moved, Tensor) else moved[output]
    if moved.dim() == 0 or len(moved) != len(alpha):
        return False
    return bool((moved.reshape(len(alpha), -1) == numbers[:, None]).all())


@rule("_to_copy")
def convert(func: Any, x: RayTensor, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Another dtype or device: what is inside stays."""
    if dtype is not None and not dtype.is_floating_point:
        raise unknown_operation(func, f"turns values into {dtype}")
    return x.like(x.slope.clone(), x.intercept.clone())


@rule("constant_pad_nd")
def pad(func: Any, x: RayTensor, pads: Sequence[int], value: float = 0) -> Any:
    by_row = x.by_row and len(pads) < 2 * x.dim()
    return x.like(func(x.slope, pads, 0), func(x.intercept, pads, value), by_row)


@rule("new_zeros", "zeros_like", "new_ones", "ones_like", "new_empty", "empty_like", "new_full", "full_like")
def make_constant(func: Any, x: RayTensor, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """A tensor of constants, into which values at infinity can be written."""
    if dtype is not None and not dtype.is_floating_point:
        return func(x.slope, *args, dtype=dtype)
    made = func(x.slope, *args)
    by_row = made.dim() > 0 and len(made) == len(x.ray_pass.alpha)
    return x.like(torch.zeros_like(made), x.constant(made), by_row)


@rule("copy")
def copy(func: Any, target: RayTensor, source: Any, non_blocking: bool = False) -> Any:
    (_, slope), (_, intercept) = slopes(target, source), intercepts(target, source)
    by_row = all(ray.by_row and ray.dim() == target.dim() for ray in rays_in(source))
    return target.like(slope.expand(target.shape), intercept.expand(target.shape), by_row)


@rule("fill", "zero")
def fill(func: Any, target: RayTensor, value: Any = 0) -> Any:
    return target.like(torch.zeros_like(target.slope), torch.full_like(target.intercept, value))


# ---- sums


@rule("add", "sub", "rsub")
def add(func: Any, x: Any, y: Any, alpha: float = 1) -> Any:
    """x ± alpha·y."""
    slope = func(*[0 if isinstance(value, (int, float)) else value for value in slopes(x, y)], alpha=alpha)
    intercept = func(*intercepts(x, y), alpha=alpha)
    rays = rays_in(x, y)
    by_row = all(ray.by_row and ray.dim() == slope.dim() for ray in rays)
    if len(rays) == 2:
        first, second = (ray.largest_slope(by_row, slope.dim()) for ray in rays)
        without_noise(slope, (first + second) * max(1, abs(alpha)))
    return rays[0].like(slope, intercept, by_row)


@rule("neg")
def negate(func: Any, x: RayTensor) -> Any:
    return x.like(-x.slope, -x.intercept)


@rule("mean", "sum")
def reduce(func: Any, x: RayTensor, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """Means and sums over some dimensions, or over all."""
    dims = [dims] if isinstance(dims, int) else list(dims or range(x.dim()))
    operation = func.overloadpacket
    slope, intercept = operation(x.slope, dims, keepdim), operation(x.intercept, dims, keepdim)
    terms = x.slope.numel() / max(1, slope.numel()) if operation is aten.sum else 1
    by_row = x.by_row and all(dim % x.dim() for dim in dims)
    return x.like(without_noise(slope, x.largest_slope(by_row, slope.dim()) * terms), intercept, by_row)


@rule(
    *("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    *("upsample_linear1d", "upsample_bilinear2d"),
)
def average(func: Any, x: RayTensor, *args: Any, **kwargs: Any) -> Any:
    """Means over windows."""
    slope, intercept = func(x.slope, *args, **kwargs), func(x.intercept, *args, **kwargs)
    return x.like(without_noise(slope, x.largest_slope(x.by_row, slope.dim())), intercept)


# ---- products with constants


@rule("mul", "div")
def scale(func: Any, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    """x·c, c·x and x/c for a constant c."""
    ray, *others = rays_in(x, y)
    if others or rounding_mode or (ray is y and func.overloadpacket is aten.div):
        raise unknown_operation(func, "multiplies or divides by a value that grows along the ray, or rounds")
    slope, intercept = (
        func(*[half if value is ray else _constant(value, half) for value in (x, y)])
        for half in (ray.slope, ray.intercept)
    )
    return ray.like(slope, intercept, ray.by_row and ray.dim() == slope.dim())


@rule("mm", "bmm")
def multiply(func: Any, left: Any, right: Any) -> Any:
    """A matrix product with constants on either side."""
    ray, *others = rays_in(left, right)
    if others:
        raise unknown_operation(func, "multiplies two values that both grow along the ray")
    if ray is left:
        slope, intercept = (func(half, _constant(right, half)) for half in (ray.slope, ray.intercept))
        by_row, norms = ray.by_row, torch.linalg.vector_norm(right, 1, dim=-2, keepdim=True)
    else:
        slope, intercept = (func(_constant(left, half), half) for half in (ray.slope, ray.intercept))
        # A matrix from the left mixes rows, unless there is one for each.
        by_row, norms = (
            ray.by_row and slope.dim() == 3,
            torch.linalg.vector_norm(left, 1, dim=-1, keepdim=True),
        )
    return ray.like(without_noise(slope, ray.largest_slope(by_row, slope.dim()) * norms), intercept, by_row)


@rule("addmm", "baddbmm")
def multiply_and_add(
    func: Any, bias: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    """beta·bias + alpha·left@right: a linear layer."""
    operation = aten.mm if func.overloadpacket is aten.addmm else aten.bmm
    return multiply(operation.default, left, right) * alpha + bias * beta


@rule("convolution")
def convolve(func: Any, x: Any, weight: Any, bias: Any, *geometry: Any) -> Any:
    transposed = geometry[3]
    if transposed or not isinstance(x, RayTensor) or rays_in(weight, bias):
        raise unknown_operation(func, "is transposed, or has weights that grow along the ray")
    slope = func(x.slope, _constant(weight, x.slope), None, *geometry)
    intercept = func(x.intercept, *map(x.constant, (weight, bias)), *geometry)
    norms = torch.linalg.vector_norm(weight.flatten(1), 1, dim=1)  # Σ|w| of each channel
    norms = norms.reshape(-1, *[1] * (weight.dim() - 2))
    by_row = x.by_row and x.dim() == weight.dim()
    return x.like(without_noise(slope, x.largest_slope(by_row, slope.dim()) * norms), intercept, by_row)


@rule(
    *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit"),
    *("_batch_norm_no_update", "_native_batch_norm_legit_no_training"),
)
def batch_norm(func: Any, x: RayTensor, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any) -> Any:
    """(x − mean)·w/√(variance + eps) + b, in eval mode."""
    if mean is None or rest[0] is True:
        raise unknown_operation(func, "uses the batch's own mean and variance")
    mean, variance = (_constant(value, x.slope) for value in (mean, variance))
    factor = (variance + rest[-1]).rsqrt()
    factor = factor if weight is None else factor * weight
    offset = -mean * factor
    offset = offset if bias is None else offset + bias
    factor, offset = (value.reshape(-1, *[1] * (x.dim() - 2)) for value in (factor, offset))
    intercept = torch.addcmul(x.constant(offset), x.intercept, x.constant(factor))
    nothing = [factor.new_empty(0)] * (len(func._schema.returns) - 1)
    return x.like(x.slope * factor, intercept), *nothing


@rule("native_dropout")
def dropout(func: Any, x: RayTensor, p: float, train: bool | None) -> Any:
    if train is not False:
        raise unknown_operation(func, "is in training mode")
    return x, torch.ones_like(x.slope, dtype=torch.bool)


def _constant(value: Any, like: Tensor) -> Any:
    return value.to(like) if isinstance(value, Tensor) else value


# ---- units that choose


@rule("relu")
def relu(func: Any, x: RayTensor) -> Any:
    x = x.without_small_slopes()
    off = x.ray_pass.settle_signs(x.slope, x.intercept, x.by_row)
    return x.like(x.slope.clamp_min(0), x.intercept.masked_fill(off.to(x.intercept.device), 0))


@rule("leaky_relu", "_prelu_kernel")
def leaky_relu(func: Any, x: RayTensor, factor: Any = 0.01) -> Any:
    x = x.without_small_slopes()
    off = x.ray_pass.settle_signs(x.slope, x.intercept, x.by_row)
    slope, intercept = (
        torch.where(off.to(half.device), half * _constant(factor, half), half)
        for half in (x.slope, x.intercept)
    )
    return x.like(slope, intercept)


@rule("abs")
def absolute(func: Any, x: RayTensor) -> Any:
    return leaky_relu(func, x, -1)


@rule("hardtanh", "clamp", "clamp_min", "clamp_max")
def clamp(func: Any, x: RayTensor, *limits: Any, **named: Any) -> Any:
    """Between two constants, either of which may be missing."""
    defaults = {aten.hardtanh: (-1.0, 1.0)}.get(func.overloadpacket, (None, None))
    if func.overloadpacket is aten.clamp_max:
        limits = (None, *limits)
    low, high = (*limits, *defaults[len(limits) :])[:2]
    low, high = named.get("min", low), named.get("max", high)
    if low is not None:
        x = _larger(x, low, 1)
    return x if high is None else _larger(x, high, -1)


@rule("maximum", "minimum")
def larger(func: Any, x: Any, y: Any) -> Any:
    return _larger(x, y, 1 if func.overloadpacket is aten.maximum else -1)


def _larger(x: Any, y: Any, sign: int) -> RayTensor:
    """The larger of two values in the end; the smaller if the sign is −1."""
    gap = add(aten.sub.Tensor, x, y).without_small_slopes()
    second = gap.ray_pass.settle_signs(sign * gap.slope, sign * gap.intercept, gap.by_row)
    (slope, other_slope), (intercept, other_intercept) = slopes(x, y), intercepts(x, y)
    other_slope = 0 if isinstance(other_slope, (int, float)) else other_slope
    slope = torch.where(second, other_slope, slope)
    second = second.to(gap.intercept.device)
    return gap.like(slope, torch.where(second, other_intercept, intercept))  # type: ignore[no-any-return]


@rule("amax", "max")
def reduce_max(func: Any, x: RayTensor, dims: Any = (), keepdim: bool = False) -> Any:
    """The maximum over some dimensions, or over all; the indices that torch gives beside it are missing."""
    over = [dim % x.dim() for dim in ([dims] if isinstance(dims, int) else dims or range(x.dim()))]
    kept = [dim for dim in range(x.dim()) if dim not in over]
    halves = (half.permute(*kept, *over).flatten(len(kept)).unbind(-1) for half in (x.slope, x.intercept))
    best = _largest(x, list(zip(*halves, strict=True)), x.by_row and 0 in kept)
    if keepdim:
        shape = [1 if dim in over else size for dim, size in enumerate(x.shape)]
        best = best.like(best.slope.reshape(shape), best.intercept.reshape(shape))
    return (best, _no_indices(best)) if len(func._schema.returns) == 2 else best


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(func: Any, x: RayTensor, kernel: Any, stride: Any = (), padding: Any = 0, *rest: Any) -> Any:
    """The maximum over windows, as one over shifted images; the indices are missing."""
    d = 2 if func.overloadpacket is aten.max_pool2d_with_indices else 3
    kernel, padding, dilation = (_per_dimension(v, d) for v in (kernel, padding, rest[0] if rest else 1))
    stride = _per_dimension(stride, d) if stride else kernel
    shape = func(torch.empty_like(x.slope, device="meta"), kernel, stride, padding, *rest)[0].shape
    pads: list[int] = []
    shifts: list[list[slice]] = []
    for size, output, *window in zip(
        x.shape[-d:], shape[-d:], kernel, stride, padding, dilation, strict=True
    ):
        width, step, before, spread = window
        reach = (output - 1) * step + 1
        pads = [before, max(0, reach + spread * (width - 1) - size - before), *pads]
        shifts.append([slice(spread * i, spread * i + reach, step) for i in range(width)])
    slope, intercept = x.slope, x.intercept
    if any(pads):
        slope, intercept = functional.pad(slope, pads, value=-math.inf), functional.pad(intercept, pads)
    places: list[Any] = [(..., *shift) for shift in product(*shifts)]
    candidates = [(slope[place], intercept[place]) for place in places]
    best = _largest(x, candidates, x.by_row)
    return best, _no_indices(best)


@rule("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(func: Any, x: RayTensor, outputs: Sequence[int]) -> Any:
    sizes = x.shape[-len(outputs) :]
    if any(size % output for size, output in zip(sizes, outputs, strict=True)):
        raise unknown_operation(
            func, f"from {tuple(sizes)} to {tuple(outputs)} has windows of more than one size"
        )
    kernel = [size // output for size, output in zip(sizes, outputs, strict=True)]
    pool = aten.max_pool2d_with_indices if len(outputs) == 2 else aten.max_pool3d_with_indices
    return max_pool(pool.default, x, kernel)


def _largest(x: RayTensor, candidates: list[tuple[Tensor, Tensor]], by_row: bool) -> RayTensor:
    """The candidate (slope, intercept) that is the largest in the end, elementwise."""
    slope = candidates[0][0]
    for other, _ in candidates[1:]:
        slope = torch.maximum(slope, other)
    if not x.ray_pass.find_alpha:
        return x.like(slope, torch.empty_like(slope, device="meta"), by_row)
    level = slope - max(SLOPE_NOISE, x.ray_pass.tolerance) * x.largest_slope(by_row, slope.dim())
    intercept = torch.full_like(slope, -math.inf)
    for other, value in candidates:
        intercept = torch.where(other >= level, torch.maximum(value, intercept), intercept)
    for other, value in candidates:
        gap = (slope - other).masked_fill_(other >= level, 0)
        x.ray_pass.settle_signs(gap, intercept - value, by_row)
    return x.like(slope, intercept, by_row)


def _no_indices(best: RayTensor) -> Tensor:
    """Something of the shape that indices would have."""
    return best.slope.new_zeros((), dtype=torch.long).expand(best.shape)


def _per_dimension(value: Any, d: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * d if len(values) == 1 else values


in_place("relu", "leaky_relu", "hardtanh", "clamp", "clamp_min", "add", "sub", "mul", "div", "neg")
in_place("copy", "fill", "zero")
