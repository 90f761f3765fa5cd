"""Rules for layers that are linear in their input: matrix products, convolutions, averages, batch norm."""

from typing import Any

import torch

from bitbayes.rays.ray_tensor import RayTensor, unknown_operation, without_noise
from bitbayes.rays.rules.registry import as_constant, aten, rays_in, rule


@rule("mm", "bmm", affine=True)
def multiply(func: Any, left: Any, right: Any) -> Any:
    """left @ right, one of which is constant."""
    ray, *others = rays_in(left, right)
    if others:
        raise unknown_operation(func, "multiplies two values that both grow along the ray")
    if ray is left:
        slope, intercept = (func(part, as_constant(right, part)) for part in (ray.slope, ray.intercept))
        by_row, norms = ray.by_row, torch.linalg.vector_norm(right, 1, dim=-2, keepdim=True)
    else:
        slope, intercept = (func(as_constant(left, part), part) for part in (ray.slope, ray.intercept))
        # A matrix on the left mixes rows, unless each row has a matrix of its own.
        by_row = ray.by_row and slope.dim() == 3
        norms = torch.linalg.vector_norm(left, 1, dim=-1, keepdim=True)
    return ray.like(without_noise(slope, ray.largest_slope(by_row, slope.dim()) * norms), intercept, by_row)


@rule("addmm", "baddbmm", affine=True)
def multiply_and_add(
    func: Any, bias: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    """beta·bias + alpha·left @ right: a linear layer."""
    operation = aten.mm if func.overloadpacket is aten.addmm else aten.bmm
    return multiply(operation.default, left, right) * alpha + bias * beta


@rule("convolution", affine=True)
def convolve(func: Any, x: Any, weight: Any, bias: Any, *geometry: Any) -> Any:
    transposed = geometry[3]
    if transposed or not isinstance(x, RayTensor) or rays_in(weight, bias):
        raise unknown_operation(func, "is transposed, or has weights that grow along the ray")
    slope = func(x.slope, as_constant(weight, x.slope), None, *geometry)
    intercept = func(x.intercept, *(as_constant(each, x.intercept) for each in (weight, bias)), *geometry)
    norms = torch.linalg.vector_norm(weight.flatten(1), 1, dim=1)  # Σ|w| of each channel
    norms = norms.reshape(-1, *[1] * (weight.dim() - 2))
    by_row = x.by_row and x.dim() == weight.dim()
    return x.like(without_noise(slope, x.largest_slope(by_row, slope.dim()) * norms), intercept, by_row)


@rule(
    *("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    *("upsample_linear1d", "upsample_bilinear2d"),
    affine=True,
)
def average(func: Any, x: RayTensor, *args: Any, **kwargs: Any) -> Any:
    """Weighted means over windows."""
    slope, intercept = func(x.slope, *args, **kwargs), func(x.intercept, *args, **kwargs)
    return x.like(without_noise(slope, x.largest_slope(x.by_row, slope.dim())), intercept)


@rule(
    *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit"),
    *("_batch_norm_no_update", "_native_batch_norm_legit_no_training"),
    affine=True,
)
def batch_norm(func: Any, x: RayTensor, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any) -> Any:
    """(x − mean)·weight/√(variance + eps) + bias, in eval mode."""
    if mean is None or rest[0] is True:
        raise unknown_operation(func, "uses the batch's own mean and variance")
    mean, variance = (as_constant(value, x.slope) for value in (mean, variance))
    factor = (variance + rest[-1]).rsqrt()
    factor = factor if weight is None else factor * weight
    offset = -mean * factor
    offset = offset if bias is None else offset + bias
    factor, offset = (value.reshape(-1, *[1] * (x.dim() - 2)) for value in (factor, offset))
    intercept = torch.addcmul(offset.to(x.intercept), x.intercept, factor.to(x.intercept))
    # The kernels also return statistics of the batch, which are not used in eval mode.
    statistics = [factor.new_empty(0)] * (len(func._schema.returns) - 1)
    return x.like(x.slope * factor, intercept), *statistics


@rule("native_dropout", affine=True)
def dropout(func: Any, x: RayTensor, p: float, train: bool | None) -> Any:
    if train is not False:
        raise unknown_operation(func, "is in training mode")
    return x, torch.ones_like(x.slope, dtype=torch.bool)
