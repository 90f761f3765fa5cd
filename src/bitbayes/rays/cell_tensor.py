"""Tensors of values that are enclosed on cells low ≤ δ ≤ high of rays, and pass through an unmodified network.

On a cell every value of the network is slope·t + intercept + e with |e| ≤ radius, where t goes from −1 at low
to 1 at high. The input δ·x is such a value with radius 0.

Affine operations take slope and intercept to those of the result, and the radius to |W|·radius. Their rules
are those of `RayTensor`, applied twice: to the line slope·t + intercept, and to a line whose slope is the
radius, with the absolute values of all constants.

All choices are made of max(x, y) = y + max(0, x − y). If x − y = st + c changes its sign on the cell, the line
of max(0, st + c) is its chord, lowered by half of the gap that is below the chord at the kink. If λ is the
share of the cell on which x − y > 0, the chord has the slope λs, and half of its gap is λ(1 − λ)|s|. As the
maximum changes by at most the larger of two errors, the new radius is the larger one plus half of the gap. A
value that is certainly the larger one is passed on as it is. So only units that switch on a cell add to the
radius, by at most the width of the cell, and on narrow cells few units switch.
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
from bitbayes.rays.rules.choices import windows
from bitbayes.rays.rules.registry import AFFINE, aten, map_real

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


def _affine(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply the rule of an affine operation to the lines, and to the radii."""
    operation, rule = func.overloadpacket, RULES[func.overloadpacket]
    lines = map_real(lambda x: x.line if isinstance(x, CellTensor) else x, (args, kwargs))
    sizes = map_real(lambda x: x.sizes if isinstance(x, CellTensor) else x.abs(), (args, kwargs))
    # The radius of beta·x ± alpha·y is that of |beta|·x + |alpha|·y.
    factors = {name: abs(value) for name, value in kwargs.items() if name in ("alpha", "beta")}
    if operation in (aten.sub, aten.sub_, aten.rsub):
        factors["alpha"] = -factors.get("alpha", 1)
    line, size = rule(func, *lines[0], **lines[1]), rule(func, *sizes[0], **{**sizes[1], **factors})
    if operation in (aten.neg, aten.neg_, aten.mul, aten.mul_, aten.div, aten.div_):
        size.slope.abs_()
    return args[0] if line is lines[0][0] else _joined(line, size)


def _joined(line: Any, size: Any) -> Any:
    if isinstance(line, RayTensor):
        return CellTensor(line, size)
    if isinstance(line, (list, tuple)):
        return [_joined(*parts) for parts in zip(line, size, strict=True)]
    return line


# ---- choices

# slope, intercept and radius, which broadcast together
Parts = tuple[Tensor, Tensor, Tensor]


def _larger(x: Parts, y: Parts) -> Parts:
    """Return max(x, y)."""
    slope, gap = x[0] - y[0], x[1] - y[1]
    size, error = slope.abs(), x[2] + y[2]
    share = torch.where(gap.abs() < size, (1 + gap / size) / 2, (gap > 0).to(gap))  # λ
    bend = share * (1 - share) * size
    first, second = gap >= size + error, gap <= -size - error
    radius = torch.maximum(x[2], y[2]) + bend
    found = (
        y[0] + share * slope,
        y[1] + torch.maximum(gap, share * size) - bend,
        torch.where(second, y[2], radius),
    )
    return tuple(torch.where(first, *parts) for parts in zip(x, found, strict=True))  # type: ignore[return-value]


def _maximum(func: Any, x: Any, y: Any) -> CellTensor:
    cells = [each for each in (x, y) if isinstance(each, CellTensor)]
    slope, intercept, radius = _larger(parts_of(x, cells[0]), parts_of(y, cells[0]))
    by_row = all(each.by_row and each.dim() == slope.dim() for each in cells)
    return cells[0].like(slope, intercept, radius.expand_as(slope), by_row)


def parts_of(value: Any, like: CellTensor) -> Parts:
    """Return the parts of a value, or of a constant."""
    if isinstance(value, CellTensor):
        return value.slope, value.intercept, value.radius
    constant = torch.as_tensor(value).to(like.intercept)
    return torch.zeros_like(constant), constant, torch.zeros_like(constant)


def _leaky_relu(func: Any, x: CellTensor, factor: Any = 0.01) -> Any:
    """max(x, factor·x), if the factor is at most 1."""
    if bool(torch.as_tensor(factor > 1).any()):
        raise unknown_operation(func, f"has a factor above 1 ({factor})")
    return torch.maximum(x, x * factor)


def _reduce_max(func: Any, x: CellTensor, dims: Any = (), keepdim: bool = False) -> Any:
    over = [dim % x.dim() for dim in ([dims] if isinstance(dims, int) else dims or range(x.dim()))]
    kept = [dim for dim in range(x.dim()) if dim not in over]
    parts = (part.permute(*kept, *over).flatten(len(kept)).unbind(-1) for part in parts_of(x, x))
    shape = [1 if dim in over else x.shape[dim] for dim in range(x.dim()) if keepdim or dim in kept]
    best = [part.reshape(shape) for part in reduce(_larger, zip(*parts, strict=True))]
    found = x.like(*best, x.by_row and 0 in kept)
    return (found, _no_indices(found)) if len(func._schema.returns) == 2 else found


def _max_pool(func: Any, x: CellTensor, *geometry: Any) -> Any:
    pads, places = windows(func, x, *geometry)
    fills = 0.0, LOWEST, 0.0
    parts = [functional.pad(part, pads, value=fill) for part, fill in zip(parts_of(x, x), fills, strict=True)]
    best = x.like(*reduce(_larger, (tuple(part[place] for part in parts) for place in places)), x.by_row)
    return best, _no_indices(best)


def _no_indices(best: CellTensor) -> Tensor:
    return best.slope.new_zeros((), dtype=torch.long).expand(best.shape)


def _in_place(operation: Any) -> Callable[..., Any]:
    """Return a rule that writes the result of an operation into its first argument."""
    return lambda func, target, *args, **kwargs: target.copy_(operation(target, *args, **kwargs))


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
# These rules for rays are made of the operations above.
_MADE_OF_OTHERS = "abs", "hardtanh", "clamp", "clamp_min", "clamp_max", "adaptive_max_pool2d", "adaptive_max_pool3d"
CHOICES |= {getattr(aten, name): RULES[getattr(aten, name)] for name in _MADE_OF_OTHERS}
CHOICES |= {
    getattr(aten, f"{operation.__name__}_"): _in_place(operation)
    for operation in list(CHOICES)
    if hasattr(aten, f"{operation.__name__}_")
}
