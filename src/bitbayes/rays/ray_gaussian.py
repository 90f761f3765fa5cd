"""The Gaussian over logits along a ray δ·x, from infinity (u = 0) to alpha (u = 1).

For δ ≥ alpha the features are φ̃(δ) = φ̃(α) + (δ − α)s. Up to a factor, the Gaussian's `scale`, they lie on the
segment (1 − u)·s/|s| + u·φ̃(α)/|φ̃(α)|, from the direction at infinity to the point at alpha. Along the segment
mean/scale is affine in u, and (1 + variance)/scale² is quadratic in u.

Limits and certificates need nothing else. Over all layers the Jacobian is affine in δ beyond alpha too, so
such a posterior has a `RayGaussian` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.logits import LogitGaussian, rescale
from bitbayes.model import Head
from bitbayes.prior import Prior
from bitbayes.rays.final_regions import Affine, FinalRegion, final_region
from bitbayes.structures import WeightGaussian

if TYPE_CHECKING:
    from bitbayes.rays.ray_residual import RayResidual

# Stands for an infinite scale: 1/scale² vanishes beside any variance, but can still be divided by.
INFINITE_SCALE = 1e150
# Rows are taken in batches whose pairs of classes, k² for each row, are at most this many numbers.
PAIR_NUMBERS_PER_BATCH = 2**20


class RayGaussian(NamedTuple):
    """The Gaussian over logits along n rays, in float64.

    alpha: (n,), the δ at u = 1. Beyond alpha every unit of the network keeps its state.
    at: at(u) is the Gaussian over the logits of all n rays at u ∈ [0, 1], without the residual.
    far_scale, near_scale: (n,), the Gaussian's scale at u = 0 and at u = 1; 1/scale is affine in u.
    delta: delta(row, u) is the δ, (c,), of points u (c,) on the rays with the numbers `row` (c,).
    residual: what the residual adds to the variances of `at`, if there is a residual.
    head: the head, if only its weights are uncertain.
    output: the number of the one output that `at` is about; None is all.
    """

    alpha: Tensor
    at: Callable[[float], LogitGaussian]
    far_scale: Tensor
    near_scale: Tensor
    delta: Callable[[Tensor, Tensor], Tensor]
    residual: RayResidual | None = None
    head: ExactHead | None = None
    output: int | None = None

    def at_temperature(self, temperature: float, class_bias: Tensor | None = None) -> RayGaussian:
        """Return the Gaussian with the mean (m + b)/T, along the same rays: b/scale is affine in u, too."""
        return self._replace(at=lambda u: self.at(u).at_temperature(temperature, class_bias))

    def in_units(self, deviations: Tensor) -> RayGaussian:
        """Return the Gaussian with each output's mean in these units, (k,), and the same covariance."""

        def at(u: float) -> LogitGaussian:
            gaussian = self.at(u)
            return replace(gaussian, scaled_mean=gaussian.scaled_mean / deviations)

        return self._replace(at=at)

    def outputs(self) -> list[RayGaussian]:
        """Return the Gaussian over each output by itself, along the same rays."""
        at = cache(self.at)

        def along(number: int) -> RayGaussian:
            return self._replace(at=lambda u: at(u).of_output(number), output=number)

        return [along(number) for number in range(at(0.0).scaled_mean.shape[1])]


class ExactHead(NamedTuple):
    """A model, its head, the Gaussian over the head's weights in float64, and the prior."""

    model: nn.Module
    head: Head
    gaussian: WeightGaussian
    prior: Prior

    @property
    def tau(self) -> float:
        """The prior's precision."""
        return self.prior.precision(self.head.name, torch.float64)


def last_layer_rays(
    exact: ExactHead, x: Tensor, *, find_alpha: bool, tolerance: float
) -> Iterator[RayGaussian]:
    """Yield the Gaussians along the rays of x, for a posterior over the last layer, a batch at a time.

    Without `find_alpha` only u = 0 is meaningful.
    """
    model, head = exact.model, exact.head
    region = final_region(model, head, x, find_alpha=find_alpha, tolerance=tolerance)
    if not find_alpha:
        region = _fill_still(region, model, head, x, tolerance)
    gaussian = exact.gaussian.to(region.alpha.device, torch.float64)
    size = max(1, PAIR_NUMBERS_PER_BATCH // head.outputs**2)
    for start in range(0, len(region.alpha), size):
        yield _along(region.rows(slice(start, start + size)), exact._replace(gaussian=gaussian))


def _fill_still(
    region: FinalRegion, model: nn.Module, head: Head, x: Tensor, tolerance: float
) -> FinalRegion:
    """Fill in alpha and the intercepts of the rays whose features stop growing, in a region of slopes alone.

    The limit of these rays is the prediction where they stop, which needs intercepts. All other rays get 0.
    """
    still = ~region.features.slope.any(1)
    features, logits = (Affine(each.slope, torch.zeros_like(each.slope)) for each in region[:2])
    alpha = torch.zeros_like(region.alpha)
    if bool(still.any()):
        known = final_region(model, head, x[still.to(x.device)], tolerance=tolerance)
        features.intercept[still] = known.features.intercept
        logits.intercept[still] = known.logits.intercept
        alpha[still] = known.alpha
    return FinalRegion(features, logits, alpha)


def _along(region: FinalRegion, exact: ExactHead) -> RayGaussian:
    gaussian, tau, bias = exact.gaussian, exact.tau, exact.head.bias
    features, logits, alpha = region.features, region.logits, region.alpha[:, None]
    near, near_scale = rescale(features.slope * alpha + features.intercept, bias)  # (n, D), (n,)
    near_mean = (logits.slope * alpha + logits.intercept) / near_scale[:, None]
    # Where the features stop growing the segment is one point, their final value: no division by 0.
    size = features.slope.abs().amax(1, keepdim=True)  # (n, 1)
    grows, size = size > 0, torch.where(size > 0, size, 1)
    slope = features.slope / size
    slope = torch.cat([slope, torch.zeros_like(size)], dim=1) if bias else slope
    far = torch.where(grows, slope, near)
    far_mean = torch.where(grows, logits.slope / size, near_mean)
    far_scale = torch.where(grows[:, 0], INFINITE_SCALE, near_scale)

    def at(u: float) -> LogitGaussian:
        point = (1 - u) * far + u * near
        scale = 1 / ((1 - u) / far_scale + u / near_scale)
        mean = (1 - u) * far_mean + u * near_mean
        return LogitGaussian(mean, gaussian.covariance(gaussian.coordinates(point), tau), scale)

    # Where the features stop growing, any increasing map from 1 − u to δ will do.
    reach = torch.where(grows[:, 0], near_scale, alpha[:, 0].clamp_min(1))

    def delta(row: Tensor, u: Tensor) -> Tensor:
        return alpha[row, 0] + (1 - u) / ((1 - u) / INFINITE_SCALE + u / reach[row]) / size[row, 0]

    return RayGaussian(region.alpha, at, far_scale, near_scale, delta, head=exact)
