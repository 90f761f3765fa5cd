"""Bounds on the confidence on cells low ≤ δ ≤ high of rays δ·x, also where units of the network switch.

A `CellTensor` encloses the network on a cell: each value is slope·t + intercept ± radius with |t| ≤ 1. So a
difference of two mean logits lies within |slope| + radius of its value in the middle of the cell. In the same
way a norm of features lies within the norm of the slope plus that of the radius. Such norms are

- the distances of the levels, and the residual's variance grows with each of them;
- the deviations of differences of logits, if only the head's weights are uncertain. For a posterior over all
  layers nothing is used but that variances are not negative.

Ranges of means and variances give ranges of the ratios z, and these a bound on the confidence, as they do
beyond alpha. So it need not be that more variance lowers the confidence; only for "quadrature" it is used.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.closed_forms import KAPPA, quadrature
from bitbayes.likelihoods import Likelihood
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.model import (
    as_logits,
    call,
    forward,
    model_device,
    points_at_once,
    private_copy,
    recorded_levels,
)
from bitbayes.rays.bounds import differences, squares
from bitbayes.rays.cell_tensor import CellTensor, Parts, parts_of
from bitbayes.rays.certificates import CellBound, in_batches, means_and_variances
from bitbayes.rays.largest_probability import largest_pairwise_probability
from bitbayes.rays.ray_gaussian import PAIR_NUMBERS_PER_BATCH, ExactHead, RayGaussian
from bitbayes.rays.ray_residual import MAX_CUBE
from bitbayes.residual import Distance, Residual, as_rows


class Range(NamedTuple):
    """Numbers between two tensors of one shape."""

    low: Tensor
    high: Tensor

    @classmethod
    def of_norm(cls, middle: Tensor, reach: Tensor) -> Range:
        return cls((middle - reach).clamp_min(0), middle + reach)


def near_bound(
    ray: RayGaussian, x: Tensor, residual: Residual, likelihood: Likelihood, method: str
) -> CellBound:
    """Return the bound on cells of δ, for the rays δ·x, which have a residual."""
    assert ray.residual is not None
    settings, head = ray.residual.settings, ray.head
    network, x = private_copy(residual.model), x.detach().to(model_device(residual.model))
    distances = [residual.distance(name, ray.alpha.device, torch.float64) for name in residual.names]
    k = ray.at(0).scaled_mean.shape[1]
    own_output = None if ray.output is None else slice(ray.output, ray.output + 1)
    # How much κ·variance grows if every logit gets an independent variance of 1.
    factor = likelihood.kappa * squares(k, likelihood, method)

    def bound(row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        cell, features = CellTensor.on(x[row], low, high), None
        with recorded_levels(network, residual.levels, cell) as recorded:
            if head is None:
                logits = as_logits(call(network, cell), len(row))
            else:
                features, logits, _ = forward(network, head.head, cell)
        levels = residual.with_repeats(as_rows(cell), recorded())
        if not all(each.by_row for each in (logits, *levels) if isinstance(each, CellTensor)):
            return torch.full_like(low, torch.inf)  # rows of several cells may have been mixed
        if (bias := settings.bias_like(ray.alpha)) is not None:
            logits = logits + bias
        means = parts_of(differences(logits / settings.temperature, likelihood, method), cell)
        if own_output is not None:
            units = settings.noise_variances(means[0]).sqrt()
            slope, intercept, radius = ((each / units)[:, own_output] for each in means)
            means = slope, intercept, radius
        ranges = [
            _distance(parts_of(level, cell), each) for level, each in zip(levels, distances, strict=True)
        ]
        cubes = (torch.stack(ends, 1).pow(3).clamp_max(MAX_CUBE) for ends in zip(*ranges, strict=True))
        shape = [-1, *[1] * (means[0].dim() - 1)]
        least, most = (factor * settings.variances_of_cubes(each).reshape(shape) for each in cubes)
        own = Range(torch.zeros_like(least), torch.full_like(most, torch.inf))
        if head is not None:
            own = _deviations(parts_of(features, cell), head, likelihood, method)
            own = own if own_output is None else Range(*(each[:, own_output] for each in own))
        variances = Range(least + own.low.square(), most + own.high.square())
        return _largest(means, variances, likelihood, method)

    one = CellTensor.on(x[:1], *ray.alpha.new_zeros(2, 1))
    # A quarter of the points that plain tensors would allow: a value has three parts here.
    size = min(points_at_once(network, (), one, 1) // 4, PAIR_NUMBERS_PER_BATCH // k**2)
    return in_batches(bound, max(1, size))


def _distance(level: Parts, distance: Distance) -> Range:
    """Return the range (c,) of the distance of a level."""
    slope, intercept, radius = level
    # No error within the radius has a longer image than the radius by the absolute values of the matrix.
    absolute = replace(distance, matrix=distance.matrix.abs())
    return Range(*distance.reach(intercept, distance.norm(slope) + absolute.norm(radius)))


def _deviations(features: Parts, head: ExactHead, likelihood: Likelihood, method: str) -> Range:
    """Return the range of √(κ·variance), (c, k) or (c, k, k), by the head's own weights."""
    slope, intercept, radius = features

    def deviation(features: Tensor, one: float) -> Tensor:
        if head.head.bias:
            features = torch.cat([features, torch.full_like(features[:, :1], one)], 1)
        factors = head.gaussian.covariance(head.gaussian.coordinates(features), head.tau)
        nothing = features.new_zeros(len(features), head.head.outputs)
        gaussian = LogitGaussian(nothing, factors, torch.ones_like(nothing[:, 0]))
        return (means_and_variances(gaussian, likelihood, method)[1] - 1).clamp_min(0).sqrt()

    middle, reach = deviation(intercept, 1.0), deviation(slope, 0.0)
    # No direction of the weights has a larger variance than the prior.
    widest = math.sqrt(likelihood.kappa * squares(head.head.outputs, likelihood, method) / head.tau)
    error = widest * radius.norm(dim=1).reshape(-1, *[1] * (middle.dim() - 1))
    return Range.of_norm(middle, reach + error)


def _largest(means: Parts, variances: Range, likelihood: Likelihood, method: str) -> Tensor:
    """Return a bound (c,) on the confidence, from means and ranges of κ·variance, (c, k) or (c, k, k)."""
    slope, middle, radius = means
    reach = slope.abs() + radius
    if method == "pairwise":  # no class differs from itself
        reach.diagonal(dim1=1, dim2=2).zero_()
    low, high = middle - reach, middle + reach
    if method == "quadrature":  # which grows with the size of the mean, and falls with the variance
        spread = CovarianceFactors(variances.low / KAPPA, None, torch.zeros_like(low[:, 0]))
        gaussian = LogitGaussian(torch.maximum(-low, high), spread, torch.ones_like(low[:, 0]))
        return quadrature(gaussian)[:, 0].sigmoid()
    narrow, wide = ((1 + each).rsqrt() for each in variances)
    ratios = low * torch.where(low < 0, narrow, wide), high * torch.where(high > 0, narrow, wide)
    probability = largest_pairwise_probability if method == "pairwise" else likelihood.largest_probability
    return probability(*ratios)
