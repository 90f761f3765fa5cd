"""Rules for sums, differences, means, and products with constants."""

from typing import Any

from bitbayes.rays.ray_tensor import RayTensor, unknown_operation, without_noise
from bitbayes.rays.rules.registry import as_constant, aten, intercepts, rays_in, rule, slopes


@rule("add", "sub", "rsub", in_place=True, affine=True)
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


@rule("neg", in_place=True, affine=True)
def negate(func: Any, x: RayTensor) -> Any:
    return x.like(-x.slope, -x.intercept)


@rule("mul", "div", in_place=True, affine=True)
def scale(func: Any, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    """x·c, c·x and x/c for a constant c."""
    ray, *others = rays_in(x, y)
    if others or rounding_mode or (ray is y and func.overloadpacket is aten.div):
        raise unknown_operation(func, "multiplies or divides by a value that grows along the ray, or rounds")
    slope, intercept = (
        func(*[part if value is ray else as_constant(value, part) for value in (x, y)])
        for part in (ray.slope, ray.intercept)
    )
    return ray.like(slope, intercept, ray.by_row and ray.dim() == slope.dim())


@rule("mean", "sum", affine=True)
def reduce(func: Any, x: RayTensor, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """Means and sums over some dimensions, or over all."""
    dims = [dims] if isinstance(dims, int) else list(dims or range(x.dim()))
    operation = func.overloadpacket
    slope, intercept = operation(x.slope, dims, keepdim), operation(x.intercept, dims, keepdim)
    terms = x.slope.numel() / max(1, slope.numel()) if operation is aten.sum else 1
    by_row = x.by_row and all(dim % x.dim() for dim in dims)
    return x.like(without_noise(slope, x.largest_slope(by_row, slope.dim()) * terms), intercept, by_row)
