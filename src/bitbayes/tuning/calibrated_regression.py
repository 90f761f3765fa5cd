"""The objective "calibrated" for regression: prior, noise and residual, by validation data alone.

With r = Var(f)/σ², the weights' and the residual's part in units of the noise, the prediction is
N(f, σ²(1 + r)), or N(f, σ²(eˢ + r)) for a noise that depends on x. For each candidate the noise variance of
least NLL is known in closed form, for each output: σ² = mean of (y − f)²/(1 + r) over the validation points.
One further point, whose squared error is that of the training data, decides where there are hardly any.

1. The prior variance, by the NLL at its best noise variance. Where the data cannot tell, a weak prior on
   1 + r decides: it should be near 1, as it is for the plain network.
2. The variance near the data: the widest one that raises the NLL by at most `PRICE`, as for classifiers.
3. What begins beyond the data follows from the distances and from the spread of the targets.
"""

import math
import warnings
from dataclasses import replace

import torch
from torch import Tensor

from bitbayes.errors import DataError, FewPointsWarning, level_of_the_caller
from bitbayes.posteriors.base import WeightPosterior
from bitbayes.precision import to_float64
from bitbayes.processes import current_processes
from bitbayes.settings import Settings
from bitbayes.tuned import TunedData
from bitbayes.tuning.calibrated import EQUAL_NATS, MANY_POINTS, NEAR
from bitbayes.tuning.costs import Costs, all_points
from bitbayes.tuning.noise import NoiseLike
from bitbayes.tuning.points import Points, kept_points, shared_points
from bitbayes.tuning.quantiles import median, variance
from bitbayes.tuning.request import TuningRequest
from bitbayes.tuning.residual_numbers import (
    data_edges,
    level_weights,
    thresholds,
    validation_distances,
    with_score,
)
from bitbayes.tuning.search import largest_within, least, search

# By how many nats, for each output, the variance near the data may raise the NLL.
PRICE = 0.01
# At the edge of the data the deviation of a prediction is at most this many times that of the noise.
LARGEST_WIDENING = 3.0
# Where the steep kernel has doubled, the deviation is this many times that of the targets.
TARGET_DEVIATIONS = 2.0
# The weak prior on 1 + r of the median point: its logarithm is normal around 0 with this deviation.
WIDENING_WIDTH = 1.0
# How many validation points the squared error of the training data counts for.
TRAINING_POINTS = 1
# With fewer points than this, a warning says so.
ENOUGH_POINTS = 20


@torch.no_grad()
def tune_calibrated_regression(
    request: TuningRequest, fixed: float | tuple[float, ...] | None
) -> tuple[Settings, TunedData]:
    """The prior variance, the noise variance and, if there is a residual, its numbers; in one pass.

    And what is kept of the data: values have no confidence.

    `fixed`: a noise variance that was given and is kept.
    """
    posterior = request.posterior
    points, _ = shared_points(
        lambda: f"tune('calibrated') of {posterior.fitted.summary()}",
        lambda: kept_points(posterior, request.validation_batches()),
        NoiseLike,
    )
    costs = Costs(points, posterior.likelihood, request.method)
    if costs.count < ENOUGH_POINTS:
        warnings.warn(
            f"there are {costs.count:.4g} validation points: they cannot choose a noise variance well. Give "
            "some hundred",
            FewPointsWarning,
            stacklevel=level_of_the_caller(),
        )
    found = _calibrate(BestNoise(costs, posterior, fixed), request)
    return found, TunedData((request.entry(),))


def _calibrate(best: "BestNoise", request: TuningRequest) -> Settings:
    costs, residual = best.validation, request.residual
    # In units of the noise, while it is chosen.
    plain = replace(request.settings, noise_variance=None, near_variance=0.0, beyond_variance=0.0)
    prior_variance = search(
        request.posterior.candidates(),
        lambda some: best.costs([replace(plain, prior_variance=each) for each in some]),
        equal=EQUAL_NATS / costs.count,
    )
    found = replace(plain, prior_variance=prior_variance)
    if residual is None:
        return best.settings(found)
    distances = validation_distances(costs, residual)
    edges = data_edges(costs, distances, residual)
    found = best.widest_near(replace(found, levels=level_weights(costs, distances, edges, residual)))
    chosen = best.settings(found)
    found = replace(
        chosen,
        beyond_variance=(TARGET_DEVIATIONS * best.spread(chosen)) ** 2,
        thresholds=thresholds(edges, residual, costs.count),
    )
    return with_score(costs, found, distances, residual)


class BestNoise:
    """The NLL of candidates with the best noise variance of each, over the validation points.

    Args:
        costs: holds the points.
        posterior: knows the squared errors of the training data.
        fixed: a noise variance to use in the place of the best, or None.
    """

    def __init__(
        self, costs: Costs, posterior: WeightPosterior, fixed: float | tuple[float, ...] | None
    ) -> None:
        self.validation, self.count = costs, costs.count
        self.outputs = posterior.likelihood.targets(posterior.outputs)
        self.shared = posterior.over_all_layers
        self.training = _row(posterior.noise_variance, self.outputs)
        self.fixed = None if fixed is None else _row(fixed, self.outputs)
        errors = all_points([_squared_errors(each) for each in costs.groups], self.outputs)
        self.exact = errors.sum(0) == 0
        self.targets = all_points([to_float64(_targets(each)) for each in costs.groups], self.outputs).cpu()

    def settings(self, candidate: Settings) -> Settings:
        """The candidate with its best noise variance."""
        noise, *_ = self._measured([candidate])
        if self.fixed is None and bool(self.exact.any()):
            raise DataError(
                "the model predicts all validation targets of an output exactly, which no noise variance "
                "describes: give validation data that were not trained on, or noise_variance=…"
            )
        found: list[float] = noise[0].tolist()
        return replace(candidate, noise_variance=found[0] if self.shared else tuple(found))

    def costs(self, candidates: list[Settings]) -> Tensor:
        """The NLL per output of each candidate and the weak prior on 1 + r, (c,)."""
        _, losses, widenings = self._measured(candidates)
        medians = [median(all_points(each), self.validation.weights) for each in widenings]
        # The sums over points are on the CPU, the points themselves may be on a GPU.
        return losses + (torch.stack(medians).cpu().log() / WIDENING_WIDTH).square() / (2 * self.count)

    def widest_near(self, found: Settings) -> Settings:
        """The settings with the widest variance near the data that raises the NLL by at most `PRICE`."""
        every = all_points([self._parts(each, found)[1].mean(1) for each in self.validation.groups])
        noise = median(every, self.validation.weights)
        largest = float(noise) * (LARGEST_WIDENING**2 - 1) * min(1.0, self.count / MANY_POINTS)
        candidates = [replace(found, near_variance=largest * share) for share in NEAR]
        _, losses, _ = self._measured(candidates)
        limit = float(losses[least(losses)]) + PRICE
        return replace(
            found, near_variance=largest_within([each.near_variance for each in candidates], losses, limit)
        )

    def spread(self, settings: Settings) -> float:
        """The largest deviation of the targets of any output, in units of its noise."""
        noise = _row(settings.noise_variance or 1.0, self.outputs)
        own = variance(self.targets, self.validation.weights)
        return float((own / noise).max().sqrt().clamp_min(1.0))

    def _measured(self, candidates: list[Settings]) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
        """The best noise variances (c, m), the mean NLL per target at these (c,), and widenings.

        These are the variances of a prediction in units of that of the noise, (n,) for each candidate and
        group of points.
        """
        widenings: list[list[Tensor]] = [[] for _ in candidates]
        totals = torch.zeros(len(candidates), 2, self.outputs, dtype=torch.float64)
        for points in self.validation.groups:
            errors = _squared_errors(points)
            for i, candidate in enumerate(candidates):
                variance, noise = self._parts(points, candidate)
                widenings[i].append((1 + variance / noise).mean(1))
                spreads = noise + variance  # 1 + r, or eˢ + r
                both = torch.stack([errors / spreads, spreads.log()], dim=1)  # (n, 2, k)
                totals[i] += points.total(both).cpu()
        current_processes().add_(totals)
        errors, logarithms = totals.unbind(1)  # (c, k)
        noise = (errors + TRAINING_POINTS * self.training) / (self.count + TRAINING_POINTS)
        if self.shared:
            noise = noise.mean(1, keepdim=True).expand_as(noise)
        if self.fixed is not None:
            noise = self.fixed.expand_as(noise)
        losses = (2 * math.pi * noise).log() + (logarithms + errors / noise) / self.count
        return noise, losses.mean(1) / 2, widenings

    def _parts(self, points: Points, candidate: Settings) -> tuple[Tensor, Tensor]:
        """The variance of the function and of the noise, in units of σ², (n, m) each."""
        (gaussian,) = points.gaussians([candidate])
        _, variance, noise = self.validation.likelihood.values(gaussian)
        return to_float64(variance), to_float64(noise)


def _targets(points: Points) -> Tensor:
    assert points.labels is not None
    return points.labels


def _squared_errors(points: Points) -> Tensor:
    """(y − f)², (n, m)."""
    targets = to_float64(_targets(points))
    means = (points.by_prior.scaled_mean * points.by_prior.scale[:, None])[:, : targets.shape[1]]
    return (targets - to_float64(means)).square()


def _row(value: float | tuple[float, ...], outputs: int) -> Tensor:
    return torch.tensor(value, dtype=torch.float64).expand(outputs)
