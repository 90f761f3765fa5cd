"""A value at infinity: numbers a·δ + b, ordered by a and then by b, that pass through a network as tensors.

Along the ray δ·x, a network of linear maps, ReLUs and max poolings is affine from some δ on. Which of its
units are on by then is decided by comparing a first, and b only where the a are equal; so one pass of such
numbers finds the last linear piece, with no search and no large δ. No `a` that comes out depends on any b:
the larger of two values has the larger a, whichever it is. So where b and alpha are not asked for, slopes go
through by themselves, beside intercepts on torch's "meta" device, which have a shape and no numbers.

`RayTensor` is a tensor subclass: it sees every operation of an unmodified model as an aten operation, looks
up what that does to a·δ + b (`operations.py`), and raises a `ModelError` that names the operation if it is
not known.

Rounding and true zeros: an `a` that should be 0 comes out of a float64 sum as some 1e-16 of the terms that
cancelled, and would switch on a unit at δ = 1e16. So after each sum an `a` below `SLOPE_NOISE` times the size
of the terms (the row's largest |a| times Σ|w| of the unit's own weights) is set to 0. That is above the largest
error of a sum of 4,500 terms, and far below what a real weight leaves: a unit with tiny weights is measured
against these weights, so it is not mistaken for a dead one.

A `tolerance` above 0 gives up exactness for an earlier alpha: where a unit is about to choose, slopes below
tolerance × the row's largest are taken for 0 too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bitbayes.errors import ModelError
from bitbayes.precision import precise

SLOPE_NOISE = 1e-12

# Operation → what it does to values at infinity: rule(func, *args, **kwargs).
RULES: dict[Any, Callable[..., Any]] = {}


class RayPass:
    """What all values of one pass share.

    alpha: (n,), from which δ on no unit seen so far changes its mind.
    find_alpha: whether alpha is followed, and intercepts are computed at all.
    tolerance: relative to a layer's largest slope, what counts as 0 where units choose; 0 is exact.
    dtype, device: those that the values show to the model, whatever they are inside.
    """

    def __init__(self, inputs: Tensor, find_alpha: bool, tolerance: float) -> None:
        self.dtype, self.device = inputs.dtype, inputs.device
        self.find_alpha, self.tolerance = find_alpha, tolerance
        self.alpha = precise(inputs).new_zeros(len(inputs))

    def settle_signs(self, slope: Tensor, intercept: Tensor, by_row: bool) -> Tensor:
        """Is slope·δ + intercept ≤ 0 in the end? Moves `alpha` on to where the last of the signs has settled.

        That of the input whose row it is, if the first dimension still counts the inputs (`by_row`), and of
        all inputs otherwise: later than needed, but never too early.
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

    slope, intercept: in float64; the intercept is on the meta device if alpha is not followed.
    by_row: does the first dimension count the inputs?

    >>> from bitbayes.rays import ray_rules
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
        slope = precise(x).clone()
        intercept = torch.zeros_like(slope, device=None if find_alpha else "meta")
        return cls(slope, intercept, RayPass(x, find_alpha, tolerance))

    def like(self, slope: Tensor, intercept: Tensor, by_row: bool | None = None) -> RayTensor:
        """Another value of the same pass."""
        return RayTensor(slope, intercept, self.ray_pass, self.by_row if by_row is None else by_row)

    def constant(self, value: Any) -> Any:
        """A number of the model's own, to calculate with intercepts; other arguments as they are."""
        return value.to(self.intercept) if isinstance(value, Tensor) and value.is_floating_point() else value

    def largest_slope(self, by_row: bool, dims: int) -> Tensor:
        """The largest |slope|: of each row, (n, 1, …) with so many dimensions, or of all, ()."""
        if not self.slope.numel():
            return self.slope.new_zeros(())
        rows = self.slope.reshape(len(self.slope) if by_row else 1, -1)
        largest = torch.maximum(rows.amax(1), -rows.amin(1))  # twice as fast as the norm of that name
        return largest.reshape(-1, *[1] * (dims - 1)) if by_row else largest[0]

    def without_small_slopes(self) -> RayTensor:
        """Itself; with a tolerance, a copy without the slopes that are nothing beside the largest."""
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
        kwargs = kwargs or {}
        rule = RULES.get(func.overloadpacket)
        if rule is not None:
            return rule(func, *args, **kwargs)
        composite = func.decompose(*args, **kwargs)
        if composite is not NotImplemented:
            return composite
        raise unknown_operation(func)


def unknown_operation(func: Any, why: str = "is not affine along a ray, or not known to be") -> ModelError:
    """The error that names an operation as users know it."""
    name = str(func.overloadpacket).removeprefix("aten.").lstrip("_").removeprefix("native_")
    return ModelError(
        f"the network's behaviour at infinity cannot be computed: its operation '{name}' {why}. Known are "
        "linear and convolutional layers, ReLU and its piecewise linear kin, max and average pooling, batch "
        "norm and dropout in eval mode, sums, and changes of shape"
    )


def without_noise(slope: Tensor, size: Tensor) -> Tensor:
    """The slope, with what is within rounding of 0 set to 0; `size` is that of the terms it is a sum of."""
    return slope.masked_fill_(slope.abs() <= SLOPE_NOISE * size, 0)
