"""The linearised Gaussian over logits along a ray, for a posterior over all layers.

In the ray's final region the derivative g at a layer's outputs is the same everywhere, and the layer's input
is slope·δ + intercept. So J(δ) = δ·J∞ + J₀. Both follow from one backward pass and from the layers' inputs
as `RayTensor`s: J∞ uses the slopes as inputs, and 0 in place of the bias's 1. The limit is that of J∞ Σ J∞ᵀ.
For δ ≥ start ≥ alpha, J(δ)/δ lies on the segment from J∞ to J(start)/start, at u = start/δ, and its
covariance is quadratic in u: three points determine it. In units of scale = δ this is a `RayGaussian`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.model import (
    DenseJacobian,
    Layer,
    LayerJacobian,
    LayerRecord,
    MatrixJacobian,
    differentiate,
    find_head,
    points_at_once,
)
from bitbayes.model.running.calls import recorded_inputs
from bitbayes.prior import Prior
from bitbayes.rays.final_regions import FinalRegion, check_rays, final_region
from bitbayes.rays.ray_gaussian import INFINITE_SCALE, RayGaussian
from bitbayes.rays.ray_tensor import RayTensor
from bitbayes.structures import NetworkGaussian

# Derivatives are taken at this multiple of alpha, because at alpha itself a unit is at 0 and has none.
BEYOND_ALPHA = 1.001
# The δ at which they are taken if alpha is 0.
DELTA_IF_ALPHA_IS_ZERO = 1e-3
# A derivative in an "other" layer does not grow if it changes by less than this, relative to the largest.
DERIVATIVE_ROUNDING = 1e-12


class ExactNetwork(NamedTuple):
    """A model in float64 and in eval mode, the Gaussian over its parameters, and the prior.

    differences: directions (k, c) that span all that a predictive sees of k logits.
    """

    model: nn.Module
    gaussian: NetworkGaussian
    prior: Prior
    differences: Tensor

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.gaussian.layers

    def covariance(self, jacobians: dict[str, LayerJacobian]) -> Tensor:
        """Return J Σ Jᵀ for the class differences, (n, c, c), from each layer's derivatives."""
        gram = self.gaussian.gram(lambda layer: jacobians[layer.name], [self.prior])[0]
        return (gram + gram.mT) / 2

    def derivatives(self, x: Tensor, layers: tuple[Layer, ...]) -> list[LayerRecord]:
        """The derivatives of the logits along the differences."""
        columns = self.differences
        return differentiate(self.model, layers, x, lambda f: columns.to(f).expand(len(f), -1, -1))[1]


@torch.no_grad()
def all_layers_rays(
    network: ExactNetwork, x: Tensor, *, find_alpha: bool, tolerance: float
) -> Iterator[RayGaussian]:
    """Yield the Gaussians along the rays of x, for a posterior over all layers, a batch of rows at a time.

    The model must end in a linear layer. Alpha is up to a thousandth larger than that of the network. Without
    `find_alpha` only u = 0 is meaningful.
    """
    check_rays(x)
    one = x[:1].to(next(network.model.parameters()))
    rows = points_at_once(network.model, network.layers, one, network.differences.shape[0])
    for part in torch.split(x, rows):
        yield _gaussian(network, part, find_alpha, tolerance)


def model_final_region(model: nn.Module, x: Tensor, tolerance: float = 0.0) -> FinalRegion:
    """Return the final region along the rays of x, for a model in eval mode that ends in a linear layer."""
    check_rays(x)
    x = x.to(next(model.parameters()))
    return final_region(model, find_head(model, x[:2]), x, tolerance=tolerance)


def delta_inside(region: FinalRegion) -> Tensor:
    """Return a δ inside the final region of each ray, (n,)."""
    return torch.where(region.alpha > 0, BEYOND_ALPHA * region.alpha, DELTA_IF_ALPHA_IS_ZERO)


def _gaussian(network: ExactNetwork, x: Tensor, find_alpha: bool, tolerance: float) -> RayGaussian:
    known = [layer.name for layer in network.layers if layer.kind != "other"]
    with recorded_inputs(network.model, known) as seen:
        region = model_final_region(network.model, x, tolerance)
    start = delta_inside(region)  # (n,)
    records, later = _derivatives(network, x.to(start), start)
    far = {each.layer.name: _slope(each, later.get(each.layer.name), start, seen) for each in records}
    limit = network.covariance(far)
    # If neither f nor J grows along a ray, its segment is a single point, the start.
    still = ~region.logits.slope.any(1)
    middle = first = limit
    if find_alpha or bool(still.any()):
        near = {each.layer.name: _scaled(each.jacobian(), start) for each in records}
        middle = first = network.covariance(near)
        # However small the limit is, far enough out it outgrows the logits, unless it is 0.
        still &= ~limit.any(2).any(1)
    if find_alpha:
        middle = network.covariance({name: _mean(far[name], near[name]) for name in far})
    far_scale = torch.where(still, start, INFINITE_SCALE)
    directions = network.differences.to(limit)

    def at(u: float) -> LogitGaussian:
        place = torch.where(still, 1.0, torch.full_like(start, u))
        values, vectors = torch.linalg.eigh(_quadratic(limit, middle, first, place[:, None, None]))
        scale = 1 / ((1 - u) / far_scale + u / start)
        mean = region.logits.slope + region.logits.intercept * (place / start)[:, None]
        factors = CovarianceFactors(values.clamp_min(0), directions @ vectors, torch.zeros_like(start))
        return LogitGaussian(mean, factors, scale)

    def delta(row: Tensor, u: Tensor) -> Tensor:
        return 1 / ((1 - u) / INFINITE_SCALE + u / start[row])

    return RayGaussian(start, at, far_scale, start, delta)


def _derivatives(
    network: ExactNetwork, x: Tensor, start: Tensor
) -> tuple[list[LayerRecord], dict[str, LayerRecord]]:
    """Return the derivatives in all layers at start·x, and in "other" layers, by name, also at 2·start·x.

    In "other" layers J∞ does not follow from the slopes of the inputs, so it needs a second point.
    """
    points = x * start.reshape(-1, *[1] * (x.dim() - 1))
    others = tuple(layer for layer in network.layers if layer.kind == "other")
    later = {each.layer.name: each for each in network.derivatives(2 * points, others)} if others else {}
    return network.derivatives(points, network.layers), later


def _slope(
    record: LayerRecord, later: LayerRecord | None, start: Tensor, seen: dict[str, list[Any]]
) -> LayerJacobian:
    """Return J∞ of a layer."""
    if later is not None:  # J(2·start) − J(start) = start·J∞
        doubled = later.jacobian().dense()  # (n, c, P)
        change = doubled - record.jacobian().dense()
        rounding = DERIVATIVE_ROUNDING * doubled.abs().amax((1, 2), keepdim=True)
        return _scaled(DenseJacobian(change * (change.abs() > rounding)), start)
    rays = seen[record.layer.name][-len(record.inputs) :]
    slopes = [
        ray.slope if isinstance(ray, RayTensor) else torch.zeros_like(value)
        for ray, value in zip(rays, record.inputs, strict=True)
    ]
    jacobian = replace(record, inputs=slopes).jacobian()
    if isinstance(jacobian, MatrixJacobian):
        if record.layer.has_bias:
            jacobian.inputs[:, :, -1] = 0
        return jacobian
    nothing = replace(record, inputs=[torch.zeros_like(value) for value in record.inputs])
    return _difference(jacobian, nothing.jacobian())


def _difference(one: LayerJacobian, other: LayerJacobian) -> LayerJacobian:
    return DenseJacobian(one.dense() - other.dense())


def _scaled(jacobian: LayerJacobian, start: Tensor) -> LayerJacobian:
    """Return the derivatives of each point n, divided by start[n]."""
    if isinstance(jacobian, MatrixJacobian):
        return MatrixJacobian(jacobian.inputs / start[:, None, None, None], jacobian.gradients)
    return DenseJacobian(jacobian.derivatives / start[:, None, None])


def _mean(one: LayerJacobian, other: LayerJacobian) -> LayerJacobian:
    if isinstance(one, MatrixJacobian) and isinstance(other, MatrixJacobian):
        return MatrixJacobian((one.inputs + other.inputs) / 2, one.gradients)
    return DenseJacobian((one.dense() + other.dense()) / 2)


def _quadratic(at_0: Tensor, at_half: Tensor, at_1: Tensor, u: Tensor) -> Tensor:
    return (1 - u) * (1 - 2 * u) * at_0 + 4 * u * (1 - u) * at_half + u * (2 * u - 1) * at_1
