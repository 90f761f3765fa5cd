"""A confidence that is never exceeded beyond alpha: the largest on each ray from infinity to alpha.

z(u) = n(u)/√d(u), n affine and d quadratic in u ∈ [0, 1]: predictives depend on ratios of this form. Such a
ratio has one stationary point, so its range on an interval is known exactly. For one logit, the range on
[0, 1] gives the largest confidence. For k logits, [0, 1] is cut into cells. On each cell, the ranges of all
ratios bound the confidence (`largest_probability.py`). A cell is halved while its bound is more than
`MAX_GAP_K_LOGITS` above the largest confidence found so far. Where |φ̃(α)| = α|s|, u is alpha/δ, so that cells
are intervals of 1/δ.

The residual adds c·e(u) to d(u), with one c for all ratios. If e lies between two numbers on a cell, then z
lies between the two ratios in which e is one of these numbers on the whole cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.closed_forms import quadrature
from bitbayes.likelihoods import Likelihood
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.rays.bounds import squares
from bitbayes.rays.largest_probability import largest_pairwise_probability
from bitbayes.rays.limits import limit, require_closed_form
from bitbayes.rays.ray_gaussian import RayGaussian
from bitbayes.rays.value_limits import ratio_limit

# A cell is halved until its bound is at most this far above the largest confidence found on the ray.
MAX_GAP_K_LOGITS, MAX_GAP_ONE_LOGIT = 1e-3, 5e-5
# A cell is halved at most this many times. The bounds of cells that are left then hold, but are less tight.
MAX_HALVINGS = 40
# Cells are taken in batches whose ratios are at most this many numbers.
RATIO_NUMBERS_PER_BATCH = 2**20
# Added to a bound, because the bound and the confidences below it are both rounded to float64. Of a number
# above 1, as |mean|/deviation may be, it is that share.
BOUND_ROUNDING = 1e-9

# bound(row, low, high): a bound on the confidence of the rays `row` for low ≤ u ≤ high; all tensors (c,).
# Where low = high it is the confidence itself.
CellBound = Callable[[Tensor, Tensor, Tensor], Tensor]


class Certificate(NamedTuple):
    """A guarantee about the confidence along n rays δ·x; each field is (n,) in float64, or None.

    alpha: beyond it every unit of the network keeps its state: no ReLU switches and no max pooling changes
        its choice.
    limit: the limit of the confidence as δ → ∞.
    confidence: a confidence that no δ ≥ alpha exceeds.
    beyond: a δ from which on the confidence is at most the one that was asked for, also below alpha; infinite
        if that is not so or cannot be shown, and None if nothing was asked for.

    With several labels for each input all but alpha are (n, k), one for each label.
    """

    alpha: Tensor
    limit: Tensor
    confidence: Tensor
    beyond: Tensor | None = None


class ApproximateCertificate(Certificate):
    """A `Certificate` that ignores slopes below a tolerance: alpha is smaller, but nothing is guaranteed."""


class ValueCertificate(NamedTuple):
    """A guarantee about |mean|/deviation of k values along n rays δ·x, in regression; all in float64.

    alpha: (n,). Beyond it the network is linear in δ.
    limit: (n, k), the limit of |mean|/deviation as δ → ∞.
    ratio: (n, k), which |mean|/deviation exceeds for no δ ≥ alpha.
    beyond: (n, k), a δ from which on |mean|/deviation is at most the number that was asked for, also below
        alpha; infinite if that is not so or cannot be shown, and None if nothing was asked for.
    """

    alpha: Tensor
    limit: Tensor
    ratio: Tensor
    beyond: Tensor | None = None


class ApproximateValueCertificate(ValueCertificate):
    """A `ValueCertificate` that ignores slopes below a tolerance, so that nothing is guaranteed."""


class Ratio(NamedTuple):
    """z(u) = ((1−u)n₀ + un₁)/√((1−u)²d₀ + 2u(1−u)d₀₁ + u²d₁); tensors of one shape (n, …)."""

    n0: Tensor
    n1: Tensor
    d0: Tensor
    d01: Tensor
    d1: Tensor

    def rows(self, numbers: Tensor) -> Ratio:
        return Ratio(*(part[numbers] for part in self))

    def plus(self, more: Tensor) -> Ratio:
        """n(u)/√(d(u) + more), with one `more` for all u."""
        return self._replace(d0=self.d0 + more, d01=self.d01 + more, d1=self.d1 + more)

    def at(self, u: Tensor) -> Tensor:
        v = 1 - u
        squared = v * v * self.d0 + 2 * u * v * self.d01 + u * u * self.d1
        return (v * self.n0 + u * self.n1) * squared.clamp_min(torch.finfo(u.dtype).tiny).rsqrt()

    def range(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest value for low ≤ u ≤ high."""
        # z² = (n·w)²/(wᵀDw) with w = (1 − u, u) is stationary where w is parallel to D⁻¹n.
        v = self.d1 * self.n0 - self.d01 * self.n1
        u = self.d0 * self.n1 - self.d01 * self.n0
        stationary = _if_between(u / (u + v), low, high)
        values = torch.stack([self.at(low), self.at(stationary), self.at(high)])
        return values.amin(0), values.amax(0)


def certify(rays: Iterable[RayGaussian], likelihood: Likelihood, method: str) -> Certificate:
    """Return alpha, the limit, and a certified confidence for each ray.

    In regression it is |mean|/deviation, in the place of a confidence.
    """
    require_closed_form(method, likelihood.with_bounds, "certificate")
    parts = []
    for ray in rays:
        far = limit([ray], likelihood, method).confidence if likelihood.classifies else ratio_limit(ray)
        if likelihood.one_label:
            largest = _largest_confidence(ray, likelihood, method)
        else:
            every = [_largest_confidence(each, likelihood, method) for each in ray.outputs()]
            largest = torch.stack(every, dim=1)
        parts.append((ray.alpha, far, largest))
    alpha, limits, confidence = (torch.cat(column) for column in zip(*parts, strict=True))
    return Certificate(alpha, limits, confidence)


def _largest_confidence(ray: RayGaussian, likelihood: Likelihood, method: str) -> Tensor:
    """Return a bound on the confidence for u ∈ [0, 1], (n,), close to its maximum."""
    zeros, one_ratio = torch.zeros_like(ray.alpha), ray.at(0).scaled_mean.shape[1] == 1
    if one_ratio and method != "quadrature" and ray.residual is None:
        start = zeros[:, None]
        largest = likelihood.largest_probability(*_ratio(ray, likelihood, method).range(start, start + 1))
    else:
        max_gap = MAX_GAP_ONE_LOGIT if one_ratio else MAX_GAP_K_LOGITS
        largest = _branch_and_bound(cell_bound(ray, likelihood, method), zeros, max_gap)
    largest = rounded_up(largest)
    return largest.clamp_max(1) if likelihood.classifies else largest


def rounded_up(bound: Tensor) -> Tensor:
    """Return a bound on confidences, or on |mean|/deviation, that holds in spite of rounding."""
    return bound + BOUND_ROUNDING * bound.clamp_min(1)


def cell_bound(ray: RayGaussian, likelihood: Likelihood, method: str) -> CellBound:
    """Return the bound on the confidence on cells of u ∈ [0, 1]."""
    if method == "quadrature":
        return _quadrature_bound(ray)
    return _ratio_bound(ray, _ratio(ray, likelihood, method), likelihood, method)


def _ratio(ray: RayGaussian, likelihood: Likelihood, method: str) -> Ratio:
    """Return the ratios that a predictive depends on: (n, k) for probit, (n, k, k) for pairwise."""
    far, middle, near = (means_and_variances(ray.at(u), likelihood, method) for u in (0.0, 0.5, 1.0))
    mixed = 2 * middle[1] - (far[1] + near[1]) / 2
    return Ratio(far[0], near[0], far[1], mixed, near[1])


def means_and_variances(
    gaussian: LogitGaussian, likelihood: Likelihood, method: str
) -> tuple[Tensor, Tensor]:
    """Return mean/scale and (1 + κ·variance)/scale², (n, k) or (n, k, k) each; κ of the likelihood."""
    if method == "pairwise":
        mean = gaussian.scaled_mean
        classes = torch.arange(mean.shape[1], device=mean.device)
        # A class with itself has no variance, but it has no mean either: its ratio is 0 in any case.
        variances = gaussian.scaled_pair_variances(*torch.meshgrid(classes, classes, indexing="ij"))
        return mean[:, :, None] - mean[:, None, :], gaussian.floor[
            :, None, None
        ] + likelihood.kappa * variances
    mean, variances = likelihood.scaled_centred(gaussian)
    if method == "meanfield":
        variances = gaussian.scaled_mean_pair_variance()[:, None].expand_as(mean)
    return mean, gaussian.floor[:, None] + likelihood.kappa * variances


def _ratio_bound(ray: RayGaussian, ratio: Ratio, likelihood: Likelihood, method: str) -> CellBound:
    """Return the bound for "probit", "meanfield" and "pairwise", from the ranges of all ratios on a cell."""
    k, shape = ratio.n0.shape[1], [-1, *[1] * (ratio.n0.dim() - 1)]
    # How much d(u) grows if every logit gets an independent variance of 1.
    added = likelihood.kappa * squares(k, likelihood, method)
    pairs = method == "pairwise"
    probability = largest_pairwise_probability if pairs else likelihood.largest_probability

    def bound(row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ratios, start, end = ratio.rows(row), low.reshape(shape), high.reshape(shape)
        if ray.residual is None:
            return probability(*ratios.range(start, end))
        extremes = ray.residual.range(ray, row, low, high)
        ends = [ratios.plus(added * each.reshape(shape)).range(start, end) for each in extremes]
        return probability(torch.minimum(ends[0][0], ends[1][0]), torch.maximum(ends[0][1], ends[1][1]))

    return _in_batches(bound, ray, ratio.n0[0].numel())


def _quadrature_bound(ray: RayGaussian) -> CellBound:
    """Return the bound for "quadrature", from the largest |m|, the smallest v and the smallest l on a cell.

    ∫ σ(f) N(f | m, v) df = P(m + √v·t > l) with a normal t and a logistic l, in any unit of m, √v and l. The
    confidence grows with |m|, and falls with v and with the size of l.
    """
    far, middle, near = (ray.at(u) for u in (0.0, 0.5, 1.0))
    m0, m1 = far.scaled_mean[:, 0], near.scaled_mean[:, 0]
    v0, v1 = far.scaled_variances()[:, 0], near.scaled_variances()[:, 0]
    v01 = 2 * middle.scaled_variances()[:, 0] - (v0 + v1) / 2
    minimum = (v0 - v01) / (v0 - 2 * v01 + v1)  # of the quadratic v(u)

    def bound(row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        points = torch.stack([low, _if_between(minimum[row], low, high), high])  # (3, c)
        rest = 1 - points
        mean = (rest * m0[row] + points * m1[row]).abs().amax(0)
        variance = rest.square() * v0[row] + 2 * points * rest * v01[row] + points.square() * v1[row]
        variance = variance.amin(0).clamp_min(0)
        if ray.residual is not None:
            variance = variance + ray.residual.range(ray, row, low, high)[0]
        size = (rest / far.scale[row] + points / near.scale[row]).amin(0)
        spread = CovarianceFactors(variance[:, None], None, torch.zeros_like(variance))
        return quadrature(LogitGaussian(mean[:, None], spread, 1 / size))[:, 0].sigmoid()

    return _in_batches(bound, ray, 1)


def _if_between(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the value if low < value < high, otherwise low: also for NaN, from constant functions."""
    return torch.where((value > low) & (value < high), value, low)


def _in_batches(bound: CellBound, ray: RayGaussian, ratios: int) -> CellBound:
    """Return the same bound, computed for some cells at a time; `ratios`: how many ratios a cell has."""
    dimensions = 0 if ray.residual is None else ray.residual.width
    return in_batches(bound, max(1, RATIO_NUMBERS_PER_BATCH // max(ratios, dimensions)))


def in_batches(bound: CellBound, size: int) -> CellBound:
    """Return the same bound, computed for at most `size` cells at a time."""
    return lambda *cells: torch.cat(
        [bound(*part) for part in zip(*(torch.split(each, size) for each in cells), strict=True)]
    )


def _branch_and_bound(bound: CellBound, zeros: Tensor, max_gap: float) -> Tensor:
    """Return the largest bound over the cells that [0, 1] is cut into, (n,); `zeros` (n,): one per ray."""
    row = torch.arange(len(zeros), device=zeros.device)
    low, high = zeros, torch.ones_like(zeros)
    reached = torch.maximum(bound(row, low, low), bound(row, high, high))
    bounded = reached.clone()
    for _ in range(MAX_HALVINGS):
        value = bound(row, low, high)
        wide = value > reached[row] + max_gap * reached[row].clamp_min(1)
        bounded.scatter_reduce_(0, row[~wide], value[~wide], "amax")
        row, low, high, value = row[wide], low[wide], high[wide], value[wide]
        if not len(row):
            return bounded
        middle = (low + high) / 2
        reached.scatter_reduce_(0, row, bound(row, middle, middle), "amax")
        row, low, high = row.repeat(2), torch.cat([low, middle]), torch.cat([middle, high])
    return bounded.scatter_reduce_(0, row, value.repeat(2), "amax")
