"""Tensors of values slope·δ + intercept, compared as δ → ∞, that pass through an unmodified network.

Along a ray δ·x, a network of linear maps, ReLUs and max poolings is affine in δ beyond some δ = alpha. There
the sign of slope·δ + intercept is the sign of the slope or, where the slope is 0, that of the intercept. So
one pass of such values finds the final linear region, without a search and without a large δ.

Slopes never depend on intercepts: the larger of two values always has the larger slope. So if alpha and the
intercepts are not needed, only slopes are computed. The intercepts are then on torch's "meta" device: they
have a shape but no numbers.

`RayTensor` is a tensor subclass. It receives each operation of the model as an aten operation and looks up
the operation's rule in `rules/`. An operation without a rule raises a `ModelError` that names it.

Rounding: a slope that should be 0 comes out of a float64 sum as about 1e-16 times the terms that cancelled,
and would switch on a ReLU at δ = 1e16. So after each sum, a slope below `SLOPE_NOISE` times the size of the
terms is set to 0. The size of the terms is the row's largest |slope| times Σ|w| over the unit's own weights.
`SLOPE_NOISE` is larger than the rounding error of a sum of 4,500 terms. A unit with tiny weights is compared
with its own weights, so its slope is kept.

Tolerance: with a `tolerance` above 0 the result is approximate and alpha is smaller. Before a unit chooses,
slopes below tolerance × the row's largest slope are set to 0 too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitbayes.errors import ModelError
from bitbayes.precision import to_float64

# Slopes below this, relative to the terms of their sum, are rounding errors.
SLOPE_NOISE = 1e-12


class RayPass:
    """The state that all values of one pass through the network share.

    alpha: (n,). Beyond alpha every unit seen so far keeps its state: no ReLU switches and no max pooling
        changes its choice.
    find_alpha: whether alpha and the intercepts are computed; if not, only slopes are.
    tolerance: slopes below tolerance × their layer's largest count as 0 where a unit chooses; 0 is exact.
    dtype, device: what the values report to the model. Inside, they are in float64.
    """

    def __init__(self, inputs: Tensor, find_alpha: bool, tolerance: float) -> None:
        self.dtype, self.device = inputs.dtype, inputs.device
        self.find_alpha, self.tolerance = find_alpha, tolerance
        self.alpha = to_float64(inputs).new_zeros(len(inputs))

    def settle_signs(self, slope: Tensor, intercept: Tensor, by_row: bool) -> Tensor:
        """Return whether slope·δ + intercept ≤ 0 as δ → ∞, and raise alpha to the last change of a sign.

        With `by_row` each row sets the alpha of its own input. Otherwise all inputs get the largest δ of all
        rows, which may be larger than needed but is never too small.
        """
        if not self.find_alpha:
            return slope <= 0
        zero = slope == 0
        if slope.numel():
            settled = (-intercept / slope).masked_fill_(zero, 0)
            latest = settled.reshape(len(settled), -1).amax(1) if by_row else settled.amax()
            self.alpha = torch.where(latest > self.alpha, latest, self.alpha)
        return (slope < 0) | (zero & (intercept <= 0))


class RayTensor(Tensor):
    """slope·δ + intercept, elementwise, as δ → ∞.

    slope, intercept: tensors of this tensor's shape in float64. The intercept is on the meta device if the
        pass does not compute alpha.
    ray_pass: the state that all values of the pass share.
    by_row: whether row i of the first dimension depends on input i only.

    >>> x = RayTensor.along(torch.tensor([[1.0, -2.0]]))
    >>> y = torch.relu(3 - x)
    >>> y.slope.tolist(), y.intercept.tolist(), y.ray_pass.alpha.tolist()
    ([[0.0, 2.0]], [[0.0, 3.0]], [3.0])
    """

    slope: Tensor
    intercept: Tensor
    ray_pass: RayPass
    by_row: bool

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, slope: Tensor, intercept: Tensor, ray_pass: RayPass, by_row: bool = True) -> RayTensor:
        self: RayTensor = Tensor._make_wrapper_subclass(
            cls, slope.shape, strides=slope.stride(), dtype=ray_pass.dtype, device=ray_pass.device
        )
        if slope.stride() != intercept.stride():  # a view must succeed on both or on neither
            intercept = torch.empty_like(slope, device=intercept.device).copy_(intercept)
        self.slope, self.intercept, self.ray_pass, self.by_row = slope, intercept, ray_pass, by_row
        return self

    @classmethod
    def along(cls, x: Tensor, *, find_alpha: bool = True, tolerance: float = 0.0) -> RayTensor:
        """δ·x: slope x, intercept 0; one ray for each row of x."""
        slope = to_float64(x).clone()
        intercept = torch.zeros_like(slope, device=None if find_alpha else "meta")
        return cls(slope, intercept, RayPass(x, find_alpha, tolerance))

    def like(self, slope: Tensor, intercept: Tensor, by_row: bool | None = None) -> RayTensor:
        """Return a new value of this pass, with this value's `by_row` unless given."""
        return RayTensor(slope, intercept, self.ray_pass, self.by_row if by_row is None else by_row)

    def largest_slope(self, by_row: bool, dims: int) -> Tensor:
        """Return max |slope| of each row, as (n, 1, …) with `dims` dimensions, or of all rows, as ()."""
        if not self.slope.numel():
            return self.slope.new_zeros(())
        rows = self.slope.reshape(len(self.slope) if by_row else 1, -1)
        largest = torch.maximum(rows.amax(1), -rows.amin(1))  # twice as fast as the infinity norm
        return largest.reshape(-1, *[1] * (dims - 1)) if by_row else largest[0]

    def without_small_slopes(self) -> RayTensor:
        """Return a copy in which slopes up to tolerance × the largest are 0; itself if tolerance = 0."""
        if not self.ray_pass.tolerance:
            return self
        level = self.ray_pass.tolerance * self.largest_slope(self.by_row, self.dim())
        return self.like(self.slope.masked_fill(self.slope.abs() <= level, 0), self.intercept)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"RayTensor(slope={self.slope}, intercept={self.intercept})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Imported here because the rules import this class: every operation on a RayTensor finds all rules.
        from bitbayes.rays.rules import RULES

        kwargs = kwargs or {}
        rule = RULES.get(func.overloadpacket)
        if rule is not None:
            return rule(func, *args, **kwargs)
        composite = func.decompose(*args, **kwargs)
        if composite is not NotImplemented:
            return composite
        raise unknown_operation(func)


def unknown_operation(func: Any, why: str = "is not affine along a ray, or not known to be") -> ModelError:
    """Return the error for an operation without a rule, under the name that users know."""
    name = str(func.overloadpacket).removeprefix("aten.").lstrip("_").removeprefix("native_")
    return ModelError(
        f"the network's behaviour at infinity cannot be computed: its operation '{name}' {why}. Known are "
        "linear and convolutional layers, ReLU and other piecewise linear activations, max and average "
        "pooling, batch norm and dropout in eval mode, sums, and changes of shape"
    )


def without_noise(slope: Tensor, size: Tensor) -> Tensor:
    """Set the rounding errors of a slope to 0, in place; `size`: the size of the terms of the sum."""
    return slope.masked_fill_(slope.abs() <= SLOPE_NOISE * size, 0)
