"""Rules for units that choose between two or more values: ReLU, clamps, maxima and max pooling.

The choice is the one that holds as δ → ∞. `RayPass.settle_signs` makes it and records in alpha from which δ
on it holds.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.rays.ray_tensor import SLOPE_NOISE, RayTensor, unknown_operation
from bitbayes.rays.rules.arithmetic import add
from bitbayes.rays.rules.registry import as_constant, aten, intercepts, rule, slopes


@rule("relu", in_place=True)
def relu(func: Any, x: RayTensor) -> Any:
    x = x.without_small_slopes()
    off = x.ray_pass.settle_signs(x.slope, x.intercept, x.by_row)
    return x.like(x.slope.clamp_min(0), x.intercept.masked_fill(off.to(x.intercept.device), 0))


@rule("leaky_relu", "_prelu_kernel", in_place=True)
def leaky_relu(func: Any, x: RayTensor, factor: Any = 0.01) -> Any:
    """x where x > 0, factor·x elsewhere."""
    x = x.without_small_slopes()
    off = x.ray_pass.settle_signs(x.slope, x.intercept, x.by_row)
    slope, intercept = (
        torch.where(off.to(part.device), part * as_constant(factor, part), part)
        for part in (x.slope, x.intercept)
    )
    return x.like(slope, intercept)


@rule("abs")
def absolute(func: Any, x: RayTensor) -> Any:
    return aten.leaky_relu(x, -1.0)


@rule("hardtanh", "clamp", "clamp_min", "clamp_max", in_place=True)
def clamp(func: Any, x: Tensor, *limits: Any, **named: Any) -> Any:
    """min(max(x, low), high) with constants low and high, either of which may be missing."""
    defaults = {aten.hardtanh: (-1.0, 1.0)}.get(func.overloadpacket, (None, None))
    if func.overloadpacket is aten.clamp_max:
        limits = (None, *limits)
    low, high = (*limits, *defaults[len(limits) :])[:2]
    low, high = named.get("min", low), named.get("max", high)
    if low is not None:
        x = torch.maximum(x, _constant(low))
    return x if high is None else torch.minimum(x, _constant(high))


def _constant(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)


@rule("maximum", "minimum")
def larger(func: Any, x: Any, y: Any) -> Any:
    return _larger(x, y, 1 if func.overloadpacket is aten.maximum else -1)


def _larger(x: Any, y: Any, sign: int) -> RayTensor:
    """Return the larger of two values as δ → ∞ if the sign is 1, the smaller one if it is −1."""
    gap = add(aten.sub.Tensor, x, y).without_small_slopes()
    second = gap.ray_pass.settle_signs(sign * gap.slope, sign * gap.intercept, gap.by_row)
    (slope, other_slope), (intercept, other_intercept) = slopes(x, y), intercepts(x, y)
    other_slope = 0 if isinstance(other_slope, (int, float)) else other_slope
    slope = torch.where(second, other_slope, slope)
    second = second.to(gap.intercept.device)
    return gap.like(slope, torch.where(second, other_intercept, intercept))  # type: ignore[no-any-return]


@rule("amax", "max")
def reduce_max(func: Any, x: RayTensor, dims: Any = (), keepdim: bool = False) -> Any:
    """The maximum over some dimensions, or over all. The indices that torch returns with it are all 0."""
    over, kept = maximum_over(x, dims)
    parts = (part.permute(*kept, *over).flatten(len(kept)).unbind(-1) for part in (x.slope, x.intercept))
    best = _largest(x, list(zip(*parts, strict=True)), x.by_row and 0 in kept)
    if keepdim:
        shape = [1 if dim in over else size for dim, size in enumerate(x.shape)]
        best = best.like(best.slope.reshape(shape), best.intercept.reshape(shape))
    return (best, no_indices(best)) if len(func._schema.returns) == 2 else best


def maximum_over(x: Tensor, dims: Any) -> tuple[list[int], list[int]]:
    """Return the dimensions that a maximum is over, and the others."""
    over = [dim % x.dim() for dim in ([dims] if isinstance(dims, int) else dims or range(x.dim()))]
    return over, [dim for dim in range(x.dim()) if dim not in over]


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(func: Any, x: RayTensor, kernel: Any, stride: Any = (), padding: Any = 0, *rest: Any) -> Any:
    """The maximum over windows, as a maximum of shifted images. The indices are all 0."""
    pads, places = windows(func, x, kernel, stride, padding, *rest)
    slope, intercept = x.slope, x.intercept
    if any(pads):
        slope, intercept = functional.pad(slope, pads, value=-math.inf), functional.pad(intercept, pads)
    best = _largest(x, [(slope[place], intercept[place]) for place in places], x.by_row)
    return best, no_indices(best)


def windows(
    func: Any, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, *rest: Any
) -> tuple[list[int], list[Any]]:
    """Return how max pooling pads images, and the places in them, as indices, whose maximum it is."""
    d = 2 if func.overloadpacket is aten.max_pool2d_with_indices else 3
    kernel, padding, dilation = (_per_dimension(v, d) for v in (kernel, padding, rest[0] if rest else 1))
    stride = _per_dimension(stride, d) if stride else kernel
    shape = func(torch.empty(x.shape, device="meta"), kernel, stride, padding, *rest)[0].shape
    pads: list[int] = []
    shifts: list[list[slice]] = []
    dimensions = zip(x.shape[-d:], shape[-d:], kernel, stride, padding, dilation, strict=True)
    for size, output, width, step, before, spread in dimensions:
        reach = (output - 1) * step + 1
        pads = [before, max(0, reach + spread * (width - 1) - size - before), *pads]
        shifts.append([slice(spread * i, spread * i + reach, step) for i in range(width)])
    return pads, [(..., *shift) for shift in product(*shifts)]


@rule("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(func: Any, x: RayTensor, outputs: Sequence[int]) -> Any:
    """As a max pooling whose windows have one size."""
    sizes = x.shape[-len(outputs) :]
    if any(size % output for size, output in zip(sizes, outputs, strict=True)):
        raise unknown_operation(func, f"from {(*sizes,)} to {(*outputs,)} has windows of more than one size")
    kernel = [size // output for size, output in zip(sizes, outputs, strict=True)]
    pool = aten.max_pool2d_with_indices if len(outputs) == 2 else aten.max_pool3d_with_indices
    return pool(x, kernel)


def _largest(x: RayTensor, candidates: list[tuple[Tensor, Tensor]], by_row: bool) -> RayTensor:
    """Return the largest of the candidates (slope, intercept) as δ → ∞, elementwise."""
    slope = candidates[0][0]
    for other, _ in candidates[1:]:
        slope = torch.maximum(slope, other)
    if not x.ray_pass.find_alpha:
        return x.like(slope, torch.empty_like(slope, device="meta"), by_row)
    # Slopes that differ by rounding only are equal: among them the intercepts decide.
    level = slope - max(SLOPE_NOISE, x.ray_pass.tolerance) * x.largest_slope(by_row, slope.dim())
    intercept = torch.full_like(slope, -math.inf)
    for other, value in candidates:
        intercept = torch.where(other >= level, torch.maximum(value, intercept), intercept)
    for other, value in candidates:
        gap = (slope - other).masked_fill_(other >= level, 0)
        x.ray_pass.settle_signs(gap, intercept - value, by_row)
    return x.like(slope, intercept, by_row)


def no_indices(best: Any) -> Tensor:
    """Return zeros in the shape of the indices, which are not computed."""
    zero: Tensor = best.slope.new_zeros((), dtype=torch.long)
    return zero.expand(best.shape)


def _per_dimension(value: Any, d: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * d if len(values) == 1 else values
