"""The objective "calibrated": prior variance, temperature and residual, by validation data alone.

Three steps, each by the negative log-likelihood (NLL) of the validation data:

1. The prior variance, with its best temperature. A wide prior shrinks every confidence, and a temperature
   below 1 makes up for it at the data.
2. The variance near the data: the widest one, again with its best temperature, that raises the NLL by at most
   `PRICE`. Clean data hardly tell one from another, and everything off the data depends on it. So the data
   decide what it may cost, and within that the most cautious one is taken.
3. What begins beyond the data follows from the distances of the validation data, and not from the NLL, which
   the few points out there would decide.

Weak priors decide where the data cannot. With no information the prediction is the plain network's.
"""

import math
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bitbayes.closed_forms import KAPPA
from bitbayes.errors import FewPointsWarning, level_of_the_caller
from bitbayes.precision import to_float64, without_autocast
from bitbayes.residual import Residual
from bitbayes.settings import Settings
from bitbayes.tuned import TunedData
from bitbayes.tuning.class_bias import best_class_bias
from bitbayes.tuning.costs import Costs, all_points
from bitbayes.tuning.noise import NoiseLike
from bitbayes.tuning.points import Points, kept_points, shared_points
from bitbayes.tuning.quantiles import median
from bitbayes.tuning.request import TuningRequest
from bitbayes.tuning.residual_numbers import (
    data_edges,
    level_weights,
    thresholds,
    validation_distances,
    with_score,
)
from bitbayes.tuning.search import largest_within, least, search

# Steps in the logarithm of the temperature; a parabola through three costs gives the last one.
STEP, SMALLEST_STEP = 0.25, 0.02
MAX_STEPS = 30
FIRST_LOOK = [2.0 * i for i in range(-6, 7)]
# The weak prior on log T/T₀ is normal, with these deviations below and above 0. It is narrow below: data that
# are all predicted right would make every prediction certain.
COLDER, WARMER = 0.15, 0.35
# The weak prior on the shrinkage r: log r is normal around the logarithm of this, with this deviation.
TYPICAL_SHRINKAGE, SHRINKAGE_WIDTH = 1.2, 0.1
# In nats: prior variances that the validation data and the weak prior tell apart by less are equal.
EQUAL_NATS = 0.01
# By what share the variance near the data may raise the NLL.
PRICE = 0.015
# At the edge of the data the logits are shrunk by at most this factor, and less for few validation points.
LARGEST_SHRINKAGE, MANY_POINTS = 3.0, 1333
# The candidates for the variance near the data, relative to the largest.
NEAR = [0.0, *(math.exp(-4 + 0.5 * i) for i in range(9))]
# Where its kernel has doubled, the deviation of a difference of two logits is this many times the typical
# difference of the two largest means.
DEVIATIONS, SMALLEST_DEVIATION = 4.0, 1.0
# Class bias and temperature are chosen in turns, so many times.
BIAS_ROUNDS = 3
# With fewer points than this, a warning says so.
ENOUGH_POINTS = 50


@torch.no_grad()
def tune_calibrated(request: TuningRequest) -> tuple[Settings, TunedData]:
    """The prior variance, the temperature and, if there is a residual, its numbers; in one pass.

    And what is kept of the data.
    """
    posterior = request.posterior
    points, _ = shared_points(
        lambda: f"tune('calibrated', {request.method!r}) of {posterior.fitted.summary()}",
        lambda: kept_points(posterior, request.validation_batches()),
        NoiseLike,
    )
    costs = Costs(points, request.posterior.likelihood, request.method)
    biases = posterior.outputs if request.class_bias else 0
    found = calibrate(costs, posterior.candidates(), request.residual, request.settings, biases)
    _warn_if_few(costs, found)
    return found, costs.tuned_data(found, request.entry())


def _warn_if_few(costs: Costs, settings: Settings) -> None:
    if costs.count >= ENOUGH_POINTS:
        return
    errors = round(float(costs.mean([settings], costs.wrong)[0]) * costs.count)
    warnings.warn(
        f"there are {costs.count:.4g} validation points, of which {errors} are predicted wrong: they cannot "
        "choose a temperature, and the prediction stays near the plain network's. Give some hundred",
        FewPointsWarning,
        stacklevel=level_of_the_caller(),
    )


def calibrate(
    costs: Costs, grid: list[float], residual: Residual | None, now: Settings, biases: int = 0
) -> Settings:
    """The best settings for validation points that were run through the model.

    Args:
        costs: on points with labels and, if there is a residual, with their distances.
        grid: the prior variances to try, in ascending order.
        residual: the residual, or None.
        now: the current settings; those that are not chosen here stay.
        biases: how many class biases to choose, one for each logit, or 0 for none.
    """
    plain = Settings(temperature=now.temperature)
    best, found = _best_prior(costs, grid, plain)
    for _ in range(BIAS_ROUNDS if biases else 0):
        bias = best_class_bias(costs, biases, found, best.neutral(found))
        best, found = _best_prior(costs, grid, replace(plain, class_bias=bias))
    if residual is None:
        return found
    distances = validation_distances(costs, residual)
    edges = data_edges(costs, distances, residual)
    found = _widest_near(best, replace(found, levels=level_weights(costs, distances, edges, residual)))
    found = replace(
        found,
        beyond_variance=_wanted_deviation(costs, found) ** 2 / costs.likelihood.logits_in_a_margin,
        thresholds=thresholds(edges, residual, costs.count),
    )
    return with_score(costs, found, distances, residual)


def _best_prior(costs: Costs, grid: list[float], plain: Settings) -> tuple["BestTemperatures", Settings]:
    """The settings with the best prior variance and its temperature, and the search that found them."""
    best = BestTemperatures(costs)
    prior_variance = search(
        grid,
        lambda some: best.costs([replace(plain, prior_variance=each) for each in some]),
        equal=EQUAL_NATS / costs.count,
    )
    return best, best.settings(replace(plain, prior_variance=prior_variance))


def _widest_near(best: "BestTemperatures", found: Settings) -> Settings:
    """The settings with the widest variance near the data that raises the NLL by at most `PRICE`."""
    costs = best.validation
    shrinkage = (LARGEST_SHRINKAGE**2 - 1) / KAPPA / costs.likelihood.logits_in_a_margin
    largest = shrinkage * min(1.0, costs.count / MANY_POINTS)
    candidates = [replace(found, near_variance=largest * share) for share in NEAR]
    best.costs(candidates)
    losses = torch.tensor([best.loss(each) for each in candidates], dtype=torch.float64)
    limit = float(losses[least(losses)]) * (1 + PRICE)
    widest = largest_within([each.near_variance for each in candidates], losses, limit)
    chosen = replace(found, near_variance=widest)
    best.costs([chosen])
    return best.settings(chosen)


def _wanted_deviation(costs: Costs, settings: Settings) -> float:
    """The deviation of a margin where the steep kernel has doubled: `DEVIATIONS` times the median margin."""
    means = [
        to_float64(each.by_prior.scaled_mean * each.by_prior.scale[:, None]) / settings.temperature
        for each in costs.groups
    ]
    margins = all_points([costs.likelihood.margins(mean) for mean in means])
    return max(DEVIATIONS * float(median(margins, costs.weights)), SMALLEST_DEVIATION)


# The prior variance and the variance near the data: by these a candidate is known.
Key = tuple[Any, float]


class BestTemperatures:
    """Finds the best temperature for each candidate, and stores it with its loss.

    Prior and residual shrink the logits of the median point by r = √(1 + κ·Var(fᵢ − fⱼ)). The temperature
    T₀ = 1/r makes up for it. The cost is the mean NLL and a weak prior, divided by the number of points n:
    [½(log(T/T₀)/s)² + ½(log(r₀/1.2)/0.1)²]/n, with s = 0.15 for T < T₀ and 0.35 above. r₀ is the r of the
    prior alone.
    """

    def __init__(self, costs: Costs) -> None:
        self.validation, self.count = costs, costs.count
        self.log_neutral: dict[Key, float] = {}  # log T₀
        self.log_temperatures: dict[Key, float] = {}
        self.losses: dict[Key, float] = {}  # NLL at the best temperature

    def settings(self, candidate: Settings) -> Settings:
        """The candidate with its best temperature."""
        return replace(candidate, temperature=math.exp(self.log_temperatures[_key(candidate)]))

    def neutral(self, candidate: Settings) -> float:
        """log T₀ of a candidate."""
        return self.log_neutral[_key(candidate)]

    def loss(self, candidate: Settings) -> float:
        """The mean NLL of a candidate at its best temperature, without the weak prior."""
        return self.losses[_key(candidate)]

    def costs(self, candidates: list[Settings]) -> Tensor:
        """The cost of each candidate at its best temperature, (c,); all are searched at once."""
        for each, shrinkage in zip(candidates, self._log_shrinkages(candidates), strict=True):
            self.log_neutral[_key(each)] = -shrinkage
        descents = self._descents(candidates)
        losses: dict[tuple[int, float], float] = {}
        for _ in range(MAX_STEPS):
            wanted = [(i, t) for i, descent in enumerate(descents) for t in descent.wanted()]
            if not wanted:
                break
            found = self._losses([(candidates[i], t) for i, t in wanted])
            for (i, t), loss in zip(wanted, found, strict=True):
                losses[i, t] = loss
                descents[i].seen[t] = loss + self._weak_prior(candidates[i], t)
        for i, each in enumerate(candidates):
            t = descents[i].best()
            self.log_temperatures[_key(each)], self.losses[_key(each)] = t, losses[i, t]
        return torch.tensor([each.seen[each.best()] for each in descents], dtype=torch.float64)

    def _descents(self, candidates: list[Settings]) -> "list[_Descent]":
        if not self.validation.likelihood.has_temperature:
            return [_Descent(0.0, fixed=True) for _ in candidates]
        known = [t - self.log_neutral[key] for key, t in self.log_temperatures.items()]
        # The temperature relative to T₀ hardly depends on the candidate.
        start = known[0] if known else self._coarse_offset(candidates[0])
        return [_Descent(self.log_neutral[_key(each)] + start) for each in candidates]

    def _coarse_offset(self, candidate: Settings) -> float:
        """Roughly the best log T − log T₀: the cost may be flat if the logits are far from 1."""
        places = [self.log_neutral[_key(candidate)] + offset for offset in FIRST_LOOK]
        losses = torch.tensor(self._losses([(candidate, t) for t in places]))
        return FIRST_LOOK[least(losses + torch.tensor([self._weak_prior(candidate, t) for t in places]))]

    def _losses(self, pairs: list[tuple[Settings, float]]) -> list[float]:
        """The mean NLL of candidates at logarithms of temperatures."""
        candidates = [replace(each, temperature=math.exp(t)) for each, t in pairs]
        losses = self.validation.mean(candidates, self.validation.likelihood.prediction_losses)
        found: list[float] = losses.tolist()
        return found

    def _weak_prior(self, candidate: Settings, log_temperature: float) -> float:
        """−log p(T, r₀)/n, up to a constant."""
        total = 0.0
        if self.validation.likelihood.has_temperature:
            ratio = log_temperature - self.log_neutral[_key(candidate)]
            total += (ratio / (COLDER if ratio < 0 else WARMER)) ** 2
        if not candidate.near_variance:
            log_shrinkage = -self.log_neutral[_key(candidate)]
            total += ((log_shrinkage - math.log(TYPICAL_SHRINKAGE)) / SHRINKAGE_WIDTH) ** 2
        return total / (2 * self.count)

    def _log_shrinkages(self, candidates: list[Settings]) -> list[float]:
        """log √(1 + κ·Var(fᵢ − fⱼ)) of the median point, for each candidate."""
        spreads = [
            torch.stack([self._spreads(points, each) for each in candidates], dim=1)
            for points in self.validation.groups
        ]
        medians = median(all_points(spreads, len(candidates)), self.validation.weights)  # (c,)
        found: list[float] = (medians.log() / 2).tolist()
        return found

    def _spreads(self, points: Points, candidate: Settings) -> Tensor:
        """1 + κ·Var(fᵢ − fⱼ) of each point, (n,)."""
        (gaussian,) = self.validation.gaussians(points, [candidate])
        with without_autocast(gaussian.scale.device):
            spread = to_float64(self.validation.likelihood.scaled_margin_variance(gaussian))
        return 1 + KAPPA * spread * to_float64(gaussian.scale).square()


def _key(candidate: Settings) -> Key:
    return candidate.prior_variance, candidate.near_variance


class _Descent:
    """The search for the least cost in log T: steps downhill, then the vertex of a parabola."""

    def __init__(self, start: float, *, fixed: bool = False) -> None:
        self.start, self.fixed = start, fixed
        self.seen: dict[float, float] = {}
        self.vertex: float | None = None

    def wanted(self) -> list[float]:
        """The values of log T to evaluate next; empty when the search is over."""
        if self.fixed:
            return [] if self.seen else [self.start]
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
