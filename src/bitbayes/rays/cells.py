"""Bounds on the confidence on cells low ≤ δ ≤ high of rays δ·x, also where units of the network switch.

A `CellTensor` encloses the network on a cell: each value is slope·t + intercept ± radius with |t| ≤ 1. So a
difference of two mean logits lies within |slope| + radius of its value in the middle of the cell. In the same
way a norm of features lies within the norm of the slope plus that of the radius. Such norms are

- the distances of the levels, and the residual's variance grows with each of them;
- the deviations of differences of logits, if only the head's weights are uncertain. For a posterior over all
  layers nothing is used but that variances are not negative.

Ranges of means and variances give ranges of the ratios z, and these a bound on the confidence, as they do
beyond alpha. So what is added to a variance need not lower the confidence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

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
from bitbayes.rays.cell_tensor import CellTensor, parts_of
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


class Enclosure(NamedTuple):
    """What is known of a network on c cells.

    features: the input of the head, (c, d); None if not only the head is uncertain.
    logits: (c, k).
    levels: the features (c, d) of each level.
    """

    features: Tensor | None
    logits: Tensor
    levels: list[Tensor]

    @classmethod
    def of(cls, network: nn.Module, head: ExactHead | None, residual: Residual, cell: CellTensor) -> Enclosure:
        """From one pass through the network."""
        features = None
        with recorded_levels(network, residual.levels, cell) as recorded:
            if head is None:
                logits = as_logits(call(network, cell), len(cell))
            else:
                features, logits, _ = forward(network, head.head, cell)
        first = [as_rows(cell)] if residual.measures_input else []
        return cls(features, logits, [*first, *recorded()])

    @property
    def by_row(self) -> bool:
        """Whether each row depends on its own cell only."""
        return all(each.by_row for each in (self.logits, *self.levels) if isinstance(each, CellTensor))


def near_bound(
    ray: RayGaussian, x: Tensor, residual: Residual, likelihood: Likelihood, method: str
) -> CellBound:
    """Return the bound on cells of δ, for the rays δ·x, with a residual."""
    assert ray.residual is not None
    settings, head = ray.residual.settings, ray.head
    network, x = private_copy(residual.model), x.detach().to(model_device(residual.model))
    measures = [Distance.of(sums, ray.alpha.device, torch.float64) for sums in residual.sums.values()]

    def bound(row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        cell = CellTensor.on(x[row], low, high)
        known = Enclosure.of(network, head, residual, cell)
        if not known.by_row:
            return torch.full_like(low, torch.inf)
        distances = [_distances(*each, cell) for each in zip(known.levels, measures, strict=True)]
        cubes = (torch.stack(ends, 1).pow(3).clamp_max(MAX_CUBE) for ends in zip(*distances, strict=True))
        added = Range(*(settings.variances_of_cubes(each) for each in cubes))
        means = differences(known.logits / settings.temperature, likelihood, method)
        spread = _variances(known, head, added, likelihood, method)
        return _largest(means, spread, likelihood, method)

    one = CellTensor.on(x[:1], *ray.alpha.new_zeros(2, 1))
    pairs = ray.at(0).scaled_mean.shape[1] ** 2
    # A quarter of the points that plain tensors would allow: a value has three parts here.
    size = min(points_at_once(network, (), one, 1) // 4, PAIR_NUMBERS_PER_BATCH // pairs)
    return in_batches(bound, max(1, size))


def _distances(level: Tensor, measure: Distance, cell: CellTensor) -> Range:
    """Return the range (c,) of the distance of a level."""
    slope, intercept, radius = parts_of(level, cell)
    # No |e| ≤ radius has a longer image than the radius has by the absolute values of the matrix.
    absolute = replace(measure, matrix=measure.matrix.abs())
    return Range.of_norm(measure(intercept), measure.norm(slope) + absolute.norm(radius))


def _variances(
    known: Enclosure, head: ExactHead | None, added: Range, likelihood: Likelihood, method: str
) -> Range:
    """Return the range of κ·variance, (c, k) or (c, k, k), of what a predictive depends on.

    `added` (c,) is that of the variance which the residual adds to every logit.
    """
    logits = known.logits.intercept
    factor = KAPPA * squares(logits.shape[1], likelihood, method)

    def deviations(features: Tensor, one: float) -> Tensor:
        """√(κ·variance), a norm of the features."""
        if head.head.bias:
            features = torch.cat([features, torch.full_like(features[:, :1], one)], 1)
        factors = head.gaussian.covariance(head.gaussian.coordinates(features), head.tau)
        gaussian = LogitGaussian(logits, factors, torch.ones_like(logits[:, 0]))
        return (means_and_variances(gaussian, likelihood, method)[1] - 1).clamp_min(0).sqrt()

    shape = [-1, *[1] * (2 if method == "pairwise" else 1)]
    low, high = (factor * each.reshape(shape) for each in added)
    if head is None:
        return Range(low, torch.full_like(high, torch.inf))
    slope, intercept, radius = parts_of(known.features, known.logits)
    # No direction of the weights is wider than the prior.
    error = (factor / head.tau) ** 0.5 * radius.norm(dim=1).reshape(shape)
    own = Range.of_norm(deviations(intercept, 1.0), deviations(slope, 0.0) + error)
    return Range(low + own.low.square(), high + own.high.square())


def _largest(means: CellTensor, variances: Range, likelihood: Likelihood, method: str) -> Tensor:
    """Return a bound (c,) on the confidence, from means and ranges of κ·variance, (c, k) or (c, k, k)."""
    reach = means.slope.abs() + means.radius
    if method == "pairwise":  # a class does not differ from itself
        reach.diagonal(dim1=1, dim2=2).zero_()
    low, high = means.intercept - reach, means.intercept + reach
    if method == "quadrature":
        spread = CovarianceFactors(variances.low / KAPPA, None, torch.zeros_like(low[:, 0]))
        gaussian = LogitGaussian(torch.maximum(-low, high), spread, torch.ones_like(low[:, 0]))
        return quadrature(gaussian)[:, 0].sigmoid()
    narrow, wide = ((1 + each).rsqrt() for each in variances)
    ratios = low * torch.where(low < 0, narrow, wide), high * torch.where(high > 0, narrow, wide)
    if method == "pairwise":
        return largest_pairwise_probability(*ratios)
    return likelihood.largest_probability(*ratios)
