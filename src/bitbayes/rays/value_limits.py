"""Values far along a ray: does what is not known of them grow faster than they do?

Beyond alpha the mean of an output is a·δ + b, and the variance of the function q₂δ² + q₁δ + q₀. So both
|mean| and the deviation grow linearly, and their ratio tends to |a|/√q₂. With the residual the variance grows
like δ³, and the ratio tends to 0. The noise does not grow.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.rays.ray_gaussian import INFINITE_SCALE, RayGaussian


class ValueLimit(NamedTuple):
    """How k values behave along n rays δ·x as δ → ∞; each field is (n, k), in float64.

    ratio: the limit of |mean|/deviation. Where it is below 1.64, intervals of 90% hold 0 from some δ on, and
        where it is 0, all intervals do: far away nothing is known of the value, not even its sign.
    mean_slope: the limit of mean/δ.
    deviation_slope: the limit of deviation/δ. It is infinite with the residual: the deviation then grows like
        δ^1.5.
    """

    ratio: Tensor
    mean_slope: Tensor
    deviation_slope: Tensor


class ApproximateValueLimit(ValueLimit):
    """A `ValueLimit` that ignores slopes below a tolerance: close to the limit, but without a guarantee."""


def value_limit(rays: Iterable[RayGaussian], size: Tensor, noise_deviations: Tensor) -> ValueLimit:
    """Return the limits along rays.

    Args:
        rays: the Gaussians over the values in units of the noise, along rays of the points x/size.
        size: (n,).
        noise_deviations: (k,), the units.
    """
    parts = []
    for ray in rays:
        gaussian, grows = ray.at(0), _grows(ray)
        row = torch.arange(len(ray.alpha), device=ray.alpha.device)
        # Both are in units of `scale`, which is this many times δ at u = 0.
        growth = torch.where(grows, ray.far_scale / ray.delta(row, torch.zeros_like(ray.alpha)), 0.0)
        means = gaussian.scaled_mean * growth[:, None]
        deviations = gaussian.scaled_variances().sqrt() * growth[:, None]
        if ray.residual is not None:
            deviations = torch.where(ray.residual.moves[:, None], torch.inf, deviations)
        parts.append((ratio_limit(ray), means, deviations))
    ratio, means, deviations = (torch.cat(column) for column in zip(*parts, strict=True))
    units = size.to(ratio)[:, None] * noise_deviations.to(ratio)
    return ValueLimit(ratio, means * units, deviations * units)


def ratio_limit(ray: RayGaussian) -> Tensor:
    """Return the limit of |mean|/deviation, (n, k), for a Gaussian in units of the noise.

    Where the values stop growing it is the ratio there, with the noise. It is NaN for an output of which
    neither the mean nor the deviation grows although others do, as may be with some layers alone.
    """
    gaussian = ray.at(0)
    if ray.residual is not None:
        gaussian = ray.residual.at_rest(gaussian)
    means, variances = gaussian.scaled_mean.abs(), gaussian.scaled_variances()
    noise = torch.where(_grows(ray), 0.0, gaussian.floor)
    found = means / (variances + noise[:, None]).sqrt()
    return found if ray.residual is None else torch.where(ray.residual.moves[:, None], 0.0, found)


def _grows(ray: RayGaussian) -> Tensor:
    """Whether the Gaussian grows along the ray, (n,)."""
    return ray.far_scale >= INFINITE_SCALE
