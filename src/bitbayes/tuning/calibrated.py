"""The objective "calibrated": temperature, prior variance and residual together, by validation data alone.

A wide prior shrinks every confidence. A temperature T below 1 makes up for it at the data, and keeps the
differences between points. So each prior variance has a best temperature. The chosen pair minimises the
negative log-likelihood of the validation data plus a weak prior.

The residual is not chosen by the likelihood, because the few validation points beyond its threshold would
decide it. Its threshold lies beyond almost all of the data, and its variance is measured against the
differences of the mean logits, divided by T.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from bitbayes.closed_forms import KAPPA
from bitbayes.likelihoods import Likelihood
from bitbayes.precision import to_float64, without_autocast
from bitbayes.prior import Prior
from bitbayes.settings import Settings
from bitbayes.tuning.costs import Costs, all_points
from bitbayes.tuning.noise import NoiseLike
from bitbayes.tuning.points import INSIDE, Points, kept_points, shared_points
from bitbayes.tuning.request import TuningRequest
from bitbayes.tuning.search import least, search

# Steps in the logarithm of the temperature; a parabola through three costs gives the last one.
STEP, SMALLEST_STEP = 0.25, 0.02
MAX_STEPS = 30
FIRST_LOOK = [2.0 * i for i in range(-6, 7)]
# The weak prior on the shrinkage r: log r is normal around the logarithm of this, with this deviation.
TYPICAL_SHRINKAGE, SHRINKAGE_WIDTH = 3.0, 0.5
# The residual begins at this multiple of the quantile `INSIDE` of its kernel on the validation data.
BEYOND = 4.0
# At twice the threshold, the deviation of a difference of two logits is this many times the typical
# difference of the two largest means.
DEVIATIONS = 4.0
SMALLEST_THRESHOLD, SMALLEST_DEVIATION = 1e-3, 1.0


@torch.no_grad()
def tune_calibrated(request: TuningRequest) -> Settings:
    """The prior variance, the temperature and, if there is a residual, its two numbers; in one pass."""
    posterior = request.posterior
    points, _ = shared_points(
        lambda: f"tune('calibrated', {request.method!r}) of {posterior.fitted.summary()}",
        lambda: kept_points(posterior, request.validation_batches()),
        NoiseLike,
    )
    return calibrate(
        Costs(points, request.posterior.likelihood, request.method), posterior.candidates(), request.settings
    )


def calibrate(costs: Costs, grid: list[float], now: Settings) -> Settings:
    """The best settings for validation points that were run through the model.

    Args:
        costs: on points with labels and, if there is a residual, with its kernel.
        grid: the prior variances to try, in ascending order.
        now: the current settings; those that are not chosen here stay.
    """
    points, likelihood = costs.groups, costs.likelihood
    curve = _Curve(costs)
    prior_variance = search(grid, curve.least_costs)
    found = replace(
        now,
        prior_variance=prior_variance,
        temperature=math.exp(curve.log_temperatures[prior_variance]),
        residual_variance=0.0,
    )
    roots = all_points([each.root_kernel for each in points if each.root_kernel is not None])
    if not len(roots):
        return found
    deviation = _wanted_deviation(points, found, likelihood)
    threshold = max(BEYOND * float(roots.square().quantile(INSIDE)), SMALLEST_THRESHOLD)
    variance = deviation**2 / (likelihood.logits_in_a_margin * threshold)
    return replace(found, residual_variance=variance, residual_threshold=threshold)


class _Curve:
    """Finds the best temperature for each prior variance (`least_costs`), and stores it.

    A prior variance shrinks the logits of the median point by r = √(1 + κ·Var(fᵢ − fⱼ)). The temperature
    T₀ = 1/r makes up for it. The cost is the mean negative log-likelihood and a weak prior, which is worth
    about one of the n points: [½log²(T/T₀) + ½(log(r/3)/0.5)²]/n. It decides where the validation data
    cannot. If all of them are right, they favour predictions that are certain. And if there are few,
    almost any prior variance fits them.
    """

    def __init__(self, costs: Costs) -> None:
        self.validation, self.count = costs, costs.count
        self.log_neutral: dict[float, float] = {}  # log T₀ of each prior variance
        self.log_temperatures: dict[float, float] = {}

    def least_costs(self, variances: list[float]) -> Tensor:
        """The cost of each prior variance at its best temperature, (c,); all are searched at once."""
        log_shrinkages = self._log_shrinkages(variances)
        self.log_neutral |= {each: -found for each, found in zip(variances, log_shrinkages, strict=True)}
        if not self.validation.likelihood.has_temperature:
            self.log_temperatures |= dict.fromkeys(variances, 0.0)
            return torch.tensor(self._pair_costs([(each, 0.0) for each in variances]), dtype=torch.float64)
        known = {each: t - self.log_neutral[each] for each, t in self.log_temperatures.items()}
        # The temperature relative to T₀ hardly depends on the prior variance.
        start = known[min(known)] if known else self._coarse_offset(min(variances))
        found = {each: _Descent(self.log_neutral[each] + start) for each in variances}
        for _ in range(MAX_STEPS):
            wanted = [(each, t) for each, descent in found.items() for t in descent.wanted()]
            if not wanted:
                break
            for (each, t), cost in zip(wanted, self._pair_costs(wanted), strict=True):
                found[each].seen[t] = cost
        self.log_temperatures |= {each: descent.best() for each, descent in found.items()}
        return torch.tensor([descent.seen[descent.best()] for descent in found.values()], dtype=torch.float64)

    def _coarse_offset(self, variance: float) -> float:
        """Roughly the best log T − log T₀: the cost may be flat if the logits are far from 1."""
        pairs = [(variance, self.log_neutral[variance] + offset) for offset in FIRST_LOOK]
        costs = torch.tensor(self._pair_costs(pairs))
        return FIRST_LOOK[least(costs)]

    def _pair_costs(self, pairs: list[tuple[float, float]]) -> list[float]:
        weak = [self._weak_prior(variance, t) for variance, t in pairs]
        candidates = [Settings(variance, math.exp(t)) for variance, t in pairs]
        losses = self.validation.mean(candidates, self.validation.likelihood.prediction_losses).tolist()
        return [loss + extra for loss, extra in zip(losses, weak, strict=True)]

    def _weak_prior(self, variance: float, log_temperature: float) -> float:
        """−log p(T, r)/n, up to a constant."""
        log_neutral = self.log_neutral[variance]
        # log T/T₀, and log r in deviations from the typical one.
        log_ratio = log_temperature - log_neutral if self.validation.likelihood.has_temperature else 0.0
        shrinkage = (-log_neutral - math.log(TYPICAL_SHRINKAGE)) / SHRINKAGE_WIDTH
        return (log_ratio**2 + shrinkage**2) / (2 * self.count)

    def _log_shrinkages(self, variances: list[float]) -> list[float]:
        """log √(1 + κ·Var(fᵢ − fⱼ)) of the median point, for each prior variance."""
        spreads = [
            torch.stack(
                [_spreads(points, variance, self.validation.likelihood) for variance in variances], dim=1
            )
            for points in self.validation.groups
        ]
        medians = all_points(spreads, len(variances)).median(0).values  # (c,)
        found: list[float] = (medians.log() / 2).tolist()
        return found


class _Descent:
    """The search for the least cost in log T: steps downhill, then the vertex of a parabola."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.seen: dict[float, float] = {}
        self.vertex: float | None = None

    def wanted(self) -> list[float]:
        """The values of log T to evaluate next; empty when the search is over."""
        if not self.seen:
            return [self.start - STEP, self.start, self.start + STEP]
        if self.vertex is not None:
            return []
        best = self.best()
        outer = [
            t for t in (best - STEP, best + STEP) if not any(abs(t - old) < STEP / 2 for old in self.seen)
        ]
        if outer:
            return outer
        down, up = (self._nearest(best + side) - self.seen[best] for side in (-STEP, STEP))
        curvature = down + up
        shift = (down - up) / curvature * STEP / 2 if curvature > 0 and math.isfinite(curvature) else 0.0
        self.vertex = best + shift
        return [self.vertex] if abs(shift) > SMALLEST_STEP else []

    def _nearest(self, log_t: float) -> float:
        """The known cost nearest to this log T."""
        return self.seen[min(self.seen, key=lambda t: abs(t - log_t))]

    def best(self) -> float:
        """The log T with the least cost so far."""
        return min(self.seen, key=lambda t: self.seen[t] if math.isfinite(self.seen[t]) else math.inf)


def _spreads(points: Points, variance: float, likelihood: Likelihood) -> Tensor:
    """1 + κ·Var(fᵢ − fⱼ) of each point, (n,)."""
    gaussian = points.by_prior.at(Prior(variance))
    with without_autocast(gaussian.scale.device):
        spread = to_float64(likelihood.scaled_margin_variance(gaussian))
    return 1 + KAPPA * spread * to_float64(gaussian.scale).square()


def _wanted_deviation(points: list[Points], settings: Settings, likelihood: Likelihood) -> float:
    """The deviation of a margin at twice the threshold: `DEVIATIONS` times the median margin."""
    means = [
        to_float64(each.by_prior.at(Prior(settings.prior_variance)).mean) / settings.temperature
        for each in points
    ]
    margins = all_points([likelihood.margins(mean) for mean in means])
    return max(DEVIATIONS * float(margins.median()), SMALLEST_DEVIATION)
