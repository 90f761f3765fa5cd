"""A confidence that is never exceeded further out: the largest on each path from infinity to alpha.

Every predictive looks at ratios of the form z(u) = n(u)/√d(u), n affine and d a quadratic in u ∈ [0, 1]. Such
a ratio has one stationary point, so its range on any interval is known exactly. One logit: that is all. k
logits: [0, 1] is cut into cells, on each of which the ranges of all ratios bound the confidence (`share.py`);
cells whose bound is further than `TIGHT` above a confidence that is reached are cut again. The cells are
those of 1/δ: where |φ̃(α)| = α|s|, u is alpha/δ.

The residual adds c·e(u) to d(u), with the same c for all ratios. If e lies between two numbers on a cell,
then z lies between what they would make of it if they were added on the whole cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.predictive import KAPPA, quadrature
from bitbayes.rays.largest_probability import largest_pairwise_probability, largest_probit_probability
from bitbayes.rays.limit import limit, require_closed_form
from bitbayes.rays.ray_gaussian import RayGaussian

CERTIFIED = ("probit", "pairwise", "quadrature")
# How far above the truth a bound may stay: for k logits, and for one.
TIGHT, TIGHT_ONE = 1e-3, 5e-5
HALVINGS = 40
# Numbers that the ratios of the cells looked at together may take.
SLAB = 2**20
# The bound is computed, like what it bounds, in float64: it must not be undercut by rounding.
ROUNDING = 1e-9


# Bounds on the confidence of some rows, (c,), on cells low ≤ u ≤ high; where those are equal, itself.
Bound = Callable[[Tensor, Tensor, Tensor], Tensor]


class Certificate(NamedTuple):
    """For each ray, (n,): alpha, the limit of confidence, and a confidence never exceeded for δ ≥ alpha."""

    alpha: Tensor
    limit: Tensor
    confidence: Tensor


class ApproximateCertificate(Certificate):
    """The same with slopes below a tolerance left out: an earlier alpha, and nothing is certain any more."""


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
        """With `more` added to the squared denominator, whatever u."""
        return self._replace(d0=self.d0 + more, d01=self.d01 + more, d1=self.d1 + more)

    def at(self, u: Tensor) -> Tensor:
        v = 1 - u
        squared = v * v * self.d0 + 2 * u * v * self.d01 + u * u * self.d1
        return (v * self.n0 + u * self.n1) * squared.clamp_min(torch.finfo(u.dtype).tiny).rsqrt()

    def range(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest value for low ≤ u ≤ high."""
        # z² = (n·w)²/(wᵀDw) with w = (1 − u, u) is stationary where w is parallel to D⁻¹n.
        v = self.d1 * self.n0 - self.d01 * self.n1
        u = self.d0 * self.n1 - self.d01 * self.n0
        turn = u / (u + v)
        turn = torch.where((turn > low) & (turn < high), turn, low)  # false for NaN: a constant ratio
        values = torch.stack([self.at(low), self.at(turn), self.at(high)])
        return values.amin(0), values.amax(0)


def certify(paths: Iterable[RayGaussian], method: str) -> Certificate:
    """alpha, the limit, and a certified confidence for each ray."""
    require_closed_form(method, CERTIFIED, "certificate")
    parts = [(path.alpha, limit([path], method).confidence, _largest(path, method)) for path in paths]
    return Certificate(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _largest(path: RayGaussian, method: str) -> Tensor:
    """At least the largest confidence on the path, (n,), and not much more."""
    zeros = torch.zeros_like(path.alpha)
    if method == "quadrature":
        largest = _branch_and_bound(_quadrature_bound(path), zeros, TIGHT_ONE)
    else:
        ratio = _ratio(path, method)
        k = ratio.n0.shape[1]
        if k == 1 and path.residual is None:
            start = zeros[:, None]
            largest = largest_probit_probability(*ratio.range(start, start + 1))
        else:
            share = largest_pairwise_probability if method == "pairwise" else largest_probit_probability
            largest = _branch_and_bound(
                _share_bound(path, ratio, share), zeros, TIGHT_ONE if k == 1 else TIGHT
            )
    return (largest + ROUNDING).clamp_max(1)


def _ratio(path: RayGaussian, method: str) -> Ratio:
    """The ratios that a predictive looks at: (n, k) for probit, (n, k, k) for pairwise."""
    far, middle, near = (_parts(path.at(u), method) for u in (0.0, 0.5, 1.0))
    mixed = 2 * middle[1] - (far[1] + near[1]) / 2
    return Ratio(far[0], near[0], far[1], mixed, near[1])


def _parts(gaussian: LogitGaussian, method: str) -> tuple[Tensor, Tensor]:
    """Means and 1 + κ·variance, in units of scale."""
    if method == "pairwise":
        mean = gaussian.scaled_mean
        classes = torch.arange(mean.shape[1], device=mean.device)
        variances = gaussian.pair_variances(*torch.meshgrid(classes, classes, indexing="ij"))
        return mean[:, :, None] - mean[:, None, :], gaussian.floor[:, None, None] + KAPPA * variances
    if gaussian.mean.shape[1] > 1:
        gaussian = gaussian.centred()
    return gaussian.scaled_mean, gaussian.floor[:, None] + KAPPA * gaussian.variances()


def _share_bound(path: RayGaussian, ratio: Ratio, share: Callable[[Tensor, Tensor], Tensor]) -> Bound:
    """From the ranges of all ratios."""
    k, shape = ratio.n0.shape[1], [-1, *[1] * (ratio.n0.dim() - 1)]
    # What an independent variance of 1 in every logit adds to the ratios' 1 + κ·variance.
    added = KAPPA * (2 if ratio.n0.dim() == 3 else 1 if k == 1 else 1 - 1 / k)

    def ranges(row: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        ratios, start, end = ratio.rows(row), low.reshape(shape), high.reshape(shape)
        if path.residual is None:
            return ratios.range(start, end)
        extremes = path.residual.range(path, row, low, high)
        pairs = [ratios.plus(added * each.reshape(shape)).range(start, end) for each in extremes]
        return torch.minimum(pairs[0][0], pairs[1][0]), torch.maximum(pairs[0][1], pairs[1][1])

    return _in_slabs(lambda *cells: share(*ranges(*cells)), _numbers(path, ratio.n0))


def _numbers(path: RayGaussian, ratios: Tensor) -> int:
    """How many numbers a cell takes."""
    dimensions = 0 if path.residual is None else path.residual.slope.shape[1]
    return max(ratios[0].numel(), dimensions)


def _in_slabs(bound: Bound, numbers: int) -> Bound:
    """The same bound, some cells at a time."""
    slab = max(1, SLAB // numbers)
    return lambda *cells: torch.cat(
        [bound(*part) for part in zip(*(torch.split(each, slab) for each in cells), strict=True)]
    )


def _quadrature_bound(path: RayGaussian) -> Bound:
    """∫ σ(f) N(f | m, v) df = P(m + √v t > l) for a normal t and a logistic l, in any unit of m, √v and l.

    It grows with |m| towards certainty, and falls with v and with the size of l: so the largest |m|, the
    smallest v and the smallest size on a cell bound it.
    """
    far, middle, near = (path.at(u) for u in (0.0, 0.5, 1.0))
    m0, m1 = far.scaled_mean[:, 0], near.scaled_mean[:, 0]
    v0, v1 = far.variances()[:, 0], near.variances()[:, 0]
    v01 = 2 * middle.variances()[:, 0] - (v0 + v1) / 2
    turn = (v0 - v01) / (v0 - 2 * v01 + v1)  # the bottom of the quadratic

    def bound(row: Tensor, low: Tensor, high: Tensor) -> Tensor:
        bottom = torch.where((turn[row] > low) & (turn[row] < high), turn[row], low)
        points = torch.stack([low, bottom, high])  # (3, c)
        rest = 1 - points
        mean = (rest * m0[row] + points * m1[row]).abs().amax(0)
        variance = rest.square() * v0[row] + 2 * points * rest * v01[row] + points.square() * v1[row]
        variance = variance.amin(0).clamp_min(0)
        if path.residual is not None:
            variance = variance + path.residual.range(path, row, low, high)[0]
        size = (rest / far.scale[row] + points / near.scale[row]).amin(0)
        spread = CovarianceFactors(variance[:, None], None, torch.zeros_like(variance))
        return quadrature(LogitGaussian((mean / size)[:, None], spread, 1 / size))[:, 0].sigmoid()

    return _in_slabs(bound, _numbers(path, m0[:, None]))


def _branch_and_bound(bound: Bound, zeros: Tensor, tight: float) -> Tensor:
    """The largest bound of the cells that [0, 1] is cut into, for each row of zeros (n,)."""
    row = torch.arange(len(zeros), device=zeros.device)
    low, high = zeros, torch.ones_like(zeros)
    reached = torch.maximum(bound(row, low, low), bound(row, high, high))
    bounded = reached.clone()
    for _ in range(HALVINGS):
        value = bound(row, low, high)
        wide = value > reached[row] + tight
        bounded.scatter_reduce_(0, row[~wide], value[~wide], "amax")
        row, low, high, value = row[wide], low[wide], high[wide], value[wide]
        if not len(row):
            return bounded
        middle = (low + high) / 2
        reached.scatter_reduce_(0, row, bound(row, middle, middle), "amax")
        row, low, high = row.repeat(2), torch.cat([low, middle]), torch.cat([middle, high])
    return bounded.scatter_reduce_(0, row, value.repeat(2), "amax")
