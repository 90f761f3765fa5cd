"""Rules for operations that move numbers, make constants, or write into a tensor."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bitbayes.rays.ray_tensor import RayTensor, unknown_operation
from bitbayes.rays.rules.registry import as_constant, intercepts, map_real, rays_in, rule, slopes


@rule(
    *("view", "_unsafe_view", "_reshape_alias", "permute", "transpose", "t", "squeeze", "unsqueeze"),
    *("expand", "repeat", "slice", "select", "split", "split_with_sizes", "unbind", "index", "index_select"),
    *("flip", "roll", "unfold", "pixel_shuffle", "alias", "detach", "clone", "lift_fresh", "cat", "stack"),
    *("upsample_nearest1d", "upsample_nearest2d", "reflection_pad1d", "reflection_pad2d"),
    affine=True,
)
def change_shape(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply the operation to slopes and to intercepts: it moves numbers without changing them."""
    rays = rays_in(args)
    by_row = all(ray.by_row for ray in rays)
    slope, intercept = func(*slopes(*args), **kwargs), func(*intercepts(*args), **kwargs)
    if isinstance(slope, Tensor):
        return rays[0].like(slope, intercept, by_row and _keeps_rows(func, args, kwargs, 0))
    return [
        rays[0].like(*parts, by_row and _keeps_rows(func, args, kwargs, number))
        for number, parts in enumerate(zip(slope, intercept, strict=True))
    ]


def _keeps_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: int) -> bool:
    """Return whether row i of that output comes from row i of the arguments.

    To find out, the operation is applied to tensors in which every number is the number of its row.
    """
    alpha = rays_in(args)[0].ray_pass.alpha
    numbers = torch.arange(len(alpha), dtype=torch.float32, device=alpha.device)

    def row_numbers(value: Tensor) -> Tensor:
        if value.dim() == 0 or len(value) != len(alpha):
            return torch.full(value.shape, -1.0, device=alpha.device)
        shown = numbers.reshape(-1, *[1] * (value.dim() - 1))
        if not isinstance(value, RayTensor):
            return shown.expand(value.shape)
        # With the strides of the value a view succeeds on both or on neither. Where the stride is 0
        # (`expand`), a dimension has a single number in memory, which is written once.
        steps = zip(value.shape, value.stride(), strict=True)
        stored = [size if stride else min(size, 1) for size, stride in steps]
        made = torch.empty_strided(stored, value.stride(), device=alpha.device)
        return made.copy_(shown[: stored[0]].expand(stored)).expand(value.shape)

    moved = func(*map_real(row_numbers, args), **kwargs)
    moved = moved if isinstance(moved, Tensor) else moved[output]
    if moved.dim() == 0 or len(moved) != len(alpha):
        return False
    return bool((moved.reshape(len(alpha), -1) == numbers[:, None]).all())


@rule("_to_copy", affine=True)
def convert(func: Any, x: RayTensor, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Ignore a new dtype or device: slopes and intercepts stay in float64 where they are."""
    if dtype is not None and not dtype.is_floating_point:
        raise unknown_operation(func, f"turns values into {dtype}")
    return x.like(x.slope.clone(), x.intercept.clone())


@rule("constant_pad_nd", affine=True)
def pad(func: Any, x: RayTensor, pads: Sequence[int], value: float = 0) -> Any:
    by_row = x.by_row and len(pads) < 2 * x.dim()
    return x.like(func(x.slope, pads, 0), func(x.intercept, pads, value), by_row)


@rule(
    "new_zeros",
    "zeros_like",
    "new_ones",
    "ones_like",
    "new_empty",
    "empty_like",
    "new_full",
    "full_like",
    affine=True,
)
def make_constant(func: Any, x: RayTensor, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Make constants as a ray tensor, because the model may write other ray tensors into them."""
    if dtype is not None and not dtype.is_floating_point:
        return func(x.slope, *args, dtype=dtype)
    made = func(x.slope, *args)
    by_row = made.dim() > 0 and len(made) == len(x.ray_pass.alpha)
    return x.like(torch.zeros_like(made), as_constant(made, x.intercept), by_row)


@rule("copy", in_place=True, affine=True)
def copy(func: Any, target: RayTensor, source: Any, non_blocking: bool = False) -> Any:
    (_, slope), (_, intercept) = slopes(target, source), intercepts(target, source)
    by_row = all(ray.by_row and ray.dim() == target.dim() for ray in rays_in(source))
    return target.like(slope.expand(target.shape), intercept.expand(target.shape), by_row)


@rule("fill", "zero", in_place=True, affine=True)
def fill(func: Any, target: RayTensor, value: Any = 0) -> Any:
    return target.like(torch.zeros_like(target.slope), torch.full_like(target.intercept, value))
