"""Tensors of values that are enclosed on cells low ≤ δ ≤ high of rays, and pass through a network.

On a cell every value of the network is slope·t + intercept + e with |e| ≤ radius, where t goes from −1 at low
to 1 at high. The input δ·x is such a value with radius 0. Rounding is left to those who use the values.

Affine operations take slope and intercept to those of the result, and the radius to |W|·radius. Their rules
are those of `RayTensor`, applied twice: to the line slope·t + intercept, and to a line whose slope is the
radius, with the absolute values of all constants.

All choices are made of max(x, y) = y + max(0, x − y). If the line of x − y changes its sign on the cell, the
new line is the chord of max(0, x − y), lowered by half of its distance from the kink. With the slope s of
x − y, and the share λ of the cell on which x − y > 0, the chord has the slope λs, and the distance is
2λ(1 − λ)|s|. As a maximum changes by at most the larger of two errors, the new radius is the larger one plus
λ(1 − λ)|s|. A value that is the larger one on the whole cell, whatever the errors, is passed on as it is. So
only units that switch on the cell add to the radius, by at most a share of its width. On narrow cells few
units switch: errors fall with the square of the width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.rays.ray_tensor import RayTensor, unknown_operation
from bitbayes.rays.rules import RULES
from bitbayes.rays.rules.choices import maximum_over, no_indices, windows
from bitbayes.rays.rules.registry import AFFINE, aten, map_real

# slope, intercept and radius
Parts = tuple[Tensor, Tensor, Tensor]
# Below every value, and finite, so that the difference of two of them is 0.
LOWEST = -1e300


class CellTensor(Tensor):
    """slope·t + intercept ± radius, elementwise, for −1 ≤ t ≤ 1.

    line: slope and intercept, with t in the place of δ.
    sizes: a line whose slope is the radius.

    >>> low, high = torch.tensor([1.0]).double(), torch.tensor([3.0]).double()
    >>> y = torch.relu(2.5 - CellTensor.on(torch.ones(1, 1), low, high))
    >>> y.slope.tolist(), y.intercept.tolist(), y.radius.tolist()
    ([[-0.75]], [[0.5625]], [[0.1875]])
    """

    line: RayTensor
    sizes: RayTensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, line: RayTensor, sizes: RayTensor) -> CellTensor:
        self: CellTensor = Tensor._make_wrapper_subclass(
            cls, line.shape, strides=line.stride(), dtype=line.dtype, device=line.device
        )
        self.line, self.sizes = line, sizes
        return self

    @classmethod
    def on(cls, x: Tensor, low: Tensor, high: Tensor) -> CellTensor:
        """δ·x for low ≤ δ ≤ high: a cell (c,) for each row of x (c, …)."""
        line, shape = RayTensor.along(x), [-1, *[1] * (x.dim() - 1)]
        half, middle = ((each / 2).reshape(shape) for each in (high - low, high + low))
        line = line.like(line.slope * half, line.slope * middle)
        return cls(line, RayTensor.along(torch.zeros_like(x), find_alpha=False))

    def like(self, slope: Tensor, intercept: Tensor, radius: Tensor, by_row: bool) -> CellTensor:
        """Return a new value on the same cells."""
        no_numbers = torch.empty_like(radius, device="meta")
        return CellTensor(
            self.line.like(slope, intercept, by_row), self.sizes.like(radius, no_numbers, by_row)
        )

    @property
    def slope(self) -> Tensor:
        return self.line.slope

    @property
    def intercept(self) -> Tensor:
        return self.line.intercept

    @property
    def radius(self) -> Tensor:
        return self.sizes.slope

    @property
    def by_row(self) -> bool:
        """Whether row i depends on cell i only."""
        return self.line.by_row

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"CellTensor(slope={self.slope}, intercept={self.intercept}, radius={self.radius})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in CHOICES:
            return CHOICES[func.overloadpacket](func, *args, **kwargs)
        if func.overloadpacket in AFFINE:
            return _affine(func, args, kwargs)
        composite = func.decompose(*args, **kwargs)
        if composite is not NotImplemented:
            return composite
        raise unknown_operation(func)


# The sign of alpha for which these operations add alpha·y.
ADDITIONS = {aten.add: 1, aten.add_: 1, aten.sub: -1, aten.sub_: -1, aten.rsub: -1}
# Their result has the sign of a number.
PRODUCTS = {aten.neg, aten.neg_, aten.mul, aten.mul_, aten.div, aten.div_}


def _affine(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply the rule of an affine operation to the lines, and to the radii with |constants|."""
    operation, rule = func.overloadpacket, RULES[func.overloadpacket]
    lines, named = map_real(lambda x: x.line if isinstance(x, CellTensor) else x, (args, kwargs))
    line = rule(func, *lines, **named)
    sizes, named = map_real(lambda x: x.sizes if isinstance(x, CellTensor) else x.abs(), (args, kwargs))
    if operation in ADDITIONS and len(sizes) == 3:  # a number may be given by its place
        *sizes, named["alpha"] = sizes
    named |= {name: abs(named[name]) for name in ("alpha", "beta") if name in named}
    if operation in ADDITIONS:
        named["alpha"] = ADDITIONS[operation] * named.get("alpha", 1)
    size = rule(func, *sizes, **named)
    if operation in PRODUCTS:
        size.slope.abs_()
    return args[0] if line is lines[0] else _joined(line, size)


def _joined(line: Any, size: Any) -> Any:
    if isinstance(line, RayTensor):
        return CellTensor(line, size)
    if isinstance(line, (list, tuple)):
        return [_joined(*parts) for parts in zip(line, size, strict=True)]
    return line


# ---- choices


def _maximum(func: Any, x: Any, y: Any) -> CellTensor:
    """max(x, y), one of which may be a constant."""
    cells = [each for each in (x, y) if isinstance(each, CellTensor)]
    (x_slope, x_intercept, x_radius), (y_slope, y_intercept, y_radius) = (
        parts_of(each, cells[0]) for each in (x, y)
    )
    slope, gap, error = x_slope - y_slope, x_intercept - y_intercept, x_radius + y_radius
    size = slope.abs()
    share = torch.where(gap.abs() < size, (1 + gap / size) / 2, (gap > 0).to(gap))
    bend = share * (1 - share) * size
    first, second = gap >= size + error, gap <= -size - error
    radius = torch.maximum(x_radius, y_radius) + bend
    by_row = all(each.by_row and each.dim() == slope.dim() for each in cells)
    return cells[0].like(
        torch.where(first, x_slope, y_slope + share * slope),
        torch.where(first, x_intercept, y_intercept + torch.maximum(gap, share * size) - bend),
        torch.where(first, x_radius, torch.where(second, y_radius, radius)),
        by_row,
    )


def parts_of(value: Any, like: CellTensor) -> Parts:
    """Return slope, intercept and radius of a value, or of a constant."""
    if isinstance(value, CellTensor):
        return value.slope, value.intercept, value.radius
    constant = torch.as_tensor(value).to(like.intercept)
    return torch.zeros_like(constant), constant, torch.zeros_like(constant)


def _leaky_relu(func: Any, x: CellTensor, factor: Any = 0.01) -> Any:
    """max(x, factor·x)."""
    if bool(torch.as_tensor(factor > 1).any()):
        raise unknown_operation(func, f"has a factor above 1: {factor}")
    return torch.maximum(x, x * factor)


def _reduce_max(func: Any, x: CellTensor, dims: Any = (), keepdim: bool = False) -> Any:
    over, kept = maximum_over(x, dims)
    best = reduce(torch.maximum, x.permute(*kept, *over).flatten(len(kept)).unbind(-1))
    if keepdim:
        best = best.reshape([1 if dim in over else size for dim, size in enumerate(x.shape)])
    return (best, no_indices(best)) if len(func._schema.returns) == 2 else best


def _max_pool(func: Any, x: CellTensor, *geometry: Any) -> Any:
    pads, places = windows(func, x, *geometry)
    fills = zip(parts_of(x, x), (0.0, LOWEST, 0.0), strict=True)
    slope, intercept, radius = (functional.pad(part, pads, value=fill) for part, fill in fills)
    # Not `x[place]`, whose rule would find out each time whether rows stay in their places.
    shifted: list[Tensor] = [
        x.like(slope[place], intercept[place], radius[place], x.by_row) for place in places
    ]
    best = reduce(torch.maximum, shifted)
    return best, no_indices(best)


CHOICES: dict[Any, Callable[..., Any]] = {
    aten.relu: lambda func, x: torch.maximum(x, x.intercept.new_zeros(())),
    aten.leaky_relu: _leaky_relu,
    aten._prelu_kernel: _leaky_relu,
    aten.maximum: _maximum,
    aten.minimum: lambda func, x, y: -torch.maximum(-x, -y),
    aten.amax: _reduce_max,
    aten.max: _reduce_max,
    aten.max_pool2d_with_indices: _max_pool,
    aten.max_pool3d_with_indices: _max_pool,
}
# The rules of rays for these are made of the operations above.
for _name in (
    "abs",
    "clamp",
    "clamp_min",
    "clamp_max",
    "hardtanh",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
):
    CHOICES[getattr(aten, _name)] = RULES[getattr(aten, _name)]


def _in_place(operation: Any) -> Callable[..., Any]:
    """Return a rule that writes the result of an operation into its first argument."""
    return lambda func, target, *args, **kwargs: target.copy_(operation(target, *args, **kwargs))


for _name in ("relu", "leaky_relu", "abs", "clamp", "clamp_min", "clamp_max", "hardtanh"):
    CHOICES[getattr(aten, f"{_name}_")] = _in_place(getattr(aten, _name))
