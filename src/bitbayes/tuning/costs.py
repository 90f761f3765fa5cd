"""The costs of candidates on points that were run through the model, over all processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bitbayes.fitted import DataEntry
from bitbayes.likelihoods import SAMPLED_LOGITS, SAMPLES, Likelihood
from bitbayes.logits import LogitGaussian, centred
from bitbayes.precision import to_float64
from bitbayes.prior import Prior
from bitbayes.processes import current_processes
from bitbayes.settings import Settings
from bitbayes.tuned import TunedData
from bitbayes.tuning.points import SEED, Points

# How many candidates to predict at once, so that kernel launches are amortised.
CANDIDATES_AT_ONCE = 5
# How many logits at most, unless one candidate has more: they stay in the CPU's cache.
LOGITS_AT_ONCE = 2**20
MEAN_FIELD = "meanfield"


class Costs:
    """Mean costs of candidates on groups of points; a point with the weight w counts w times.

    Args:
        groups: this process's share of the points, which may be empty.
        likelihood: of the labels.
        method: how probabilities are predicted: a closed form, or "mc".
    """

    def __init__(self, groups: list[Points], likelihood: Likelihood, method: str) -> None:
        self.groups, self.likelihood, self.method = groups, likelihood, method
        self.count = point_count(groups)
        # For "meanfield", by the points and the prior variance.
        self._pair_variances: dict[tuple[int, Any], Tensor] = {}

    @cached_property
    def weights(self) -> Tensor | None:
        """Those of the points of all processes, as `all_points` gives them; None if all are 1."""
        return _all_weights(self.groups)

    def mean(self, candidates: list[Settings], cost: Callable[..., Tensor]) -> Tensor:
        """For each candidate the mean of cost(drop-in logits, labels) over all points, (c,) in float64."""
        totals = []
        for points in self.groups:
            predict, sums = self._predictor(points), []
            affordable = LOGITS_AT_ONCE // max(1, points.by_prior.scaled_mean.numel())
            at_once = max(1, min(CANDIDATES_AT_ONCE, affordable))
            for start in range(0, len(candidates), at_once):
                some = candidates[start : start + at_once]
                labels = () if points.labels is None else (torch.cat([points.labels] * len(some)),)
                # In float64: of float32 the rounding would depend on the order of the points.
                found = to_float64(cost(predict(some), *labels)).reshape(len(some), -1)
                sums.append(points.total(found.T))
            totals.append(torch.cat(sums))
        # Read back from the device once, at the end.
        none = torch.zeros(len(candidates), dtype=torch.float64)
        total = torch.stack(totals).sum(0).cpu() if totals else none
        current_processes().add_(total)
        return total / self.count

    def wrong(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Whether points with these drop-in logits are predicted wrong, (n,) in float64."""
        decided = self.likelihood.log_decisions(logits).argmax(2)  # (n, decisions)
        return to_float64((decided != labels.reshape(decided.shape)).any(1))

    def tuned_data(self, settings: Settings, entry: DataEntry) -> TunedData:
        """What is kept of the points of all processes: their confidences, and which are predicted wrong."""
        rows = []
        for points in self.groups:
            logits = self._predictor(points)([settings])
            assert points.labels is not None
            confidences = self.likelihood.confidence(self.likelihood.log_probabilities(logits).exp())
            wrong = self.wrong(logits, points.labels)
            rows.append(torch.stack([to_float64(confidences), wrong], dim=1))
        confidences, wrong = all_points(rows, 2).unbind(1)
        return TunedData.of((entry,), confidences, wrong)

    def losses_by_bias(self, points: Points, settings: Settings) -> Callable[[Tensor], Tensor]:
        """The function from a class bias (k,) to the summed NLL of the points, differentiable in it.

        All else is computed once. Its result is in float64.
        """
        settings = replace(settings, class_bias=None)
        assert points.labels is not None
        # Autograd keeps no tensor that was made in inference mode, but copies of it.
        labels, scale = points.labels.clone(), points.by_prior.scale.clone()
        if self.method == MEAN_FIELD:
            means, factors = centred(points.by_prior.scaled_mean), self._factors(points)([settings])[0]

            def predict(bias: Tensor) -> Tensor:
                return factors[:, None] * _biased(means, scale, bias)
        else:
            (gaussian,) = points.gaussians([settings])
            gaussian = replace(gaussian, scaled_mean=gaussian.scaled_mean.clone(), scale=scale)

            def predict(bias: Tensor) -> Tensor:
                at_bias = gaussian.at_temperature(1.0, bias / settings.temperature)
                if self.method == SAMPLED_LOGITS:
                    return self._sampled(at_bias)
                return self.likelihood.predict(at_bias, self.method)

        def loss(bias: Tensor) -> Tensor:
            logits = predict(bias.to(points.by_prior.scaled_mean))
            found = to_float64(self.likelihood.prediction_losses(logits, labels))
            return points.total(found[:, None])[0]

        return loss

    def gaussians(self, points: Points, candidates: list[Settings]) -> list[LogitGaussian]:
        """For each candidate the Gaussian over the logits, or what the predictive needs of it.

        "meanfield" needs the mean variance of a difference of two logits alone: one number for each point,
        which is computed once for each prior. There the Gaussians are over two logits with this variance.
        """
        if self.method != MEAN_FIELD:
            return points.gaussians(candidates)
        found = []
        for each in candidates:
            key = id(points.by_prior), each.prior_variance
            if key not in self._pair_variances:
                self._pair_variances[key] = points.by_prior.mean_pair_variance(Prior(each.prior_variance))
            # Its two logits stand for no classes.
            each = replace(each, class_bias=None)
            pair = LogitGaussian.of_pair(self._pair_variances[key], points.by_prior.scale)
            found.append(each.complete(pair, points.distances))
        return found

    def _predictor(self, points: Points) -> Callable[[list[Settings]], Tensor]:
        """Return the function that gives the drop-in logits (c·n, k) of some candidates."""
        if self.method == SAMPLED_LOGITS:
            return lambda some: torch.cat([self._sampled(each) for each in points.gaussians(some)])

        def predict(some: list[Settings]) -> Tensor:
            return self.likelihood.predict(LogitGaussian.stacked(self.gaussians(points, some)), self.method)

        if self.method != MEAN_FIELD:
            return predict
        means, factors = centred(points.by_prior.scaled_mean), self._factors(points)

        def multiply(some: list[Settings]) -> Tensor:
            found = [_biased(means, points.by_prior.scale, each.bias_like(means)) for each in some]
            # Without a bias, which all have or none, they have one mean.
            every = means if found[0] is means else torch.stack(found)
            return (factors(some)[:, :, None] * every).flatten(0, 1)

        return multiply

    def _factors(self, points: Points) -> Callable[[list[Settings]], Tensor]:
        """Return the function that gives what "meanfield" multiplies all means of a point by, (c, n)."""
        means = centred(points.by_prior.scaled_mean)
        largest = torch.finfo(means.dtype).max / 2 / means.abs().amax(1).clamp_min(1)

        def factors(some: list[Settings]) -> Tensor:
            pairs = LogitGaussian.stacked(self.gaussians(points, some))
            # The 1 between the two logits is multiplied by it, too.
            found = self.likelihood.predict(pairs, MEAN_FIELD).diff(dim=1).neg().reshape(len(some), -1)
            return torch.minimum(found, largest)

        return factors

    def _sampled(self, gaussian: LogitGaussian) -> Tensor:
        """Drop-in logits, with the same random numbers for each candidate, so that these can be compared."""
        generator = torch.Generator(gaussian.scale.device).manual_seed(SEED)
        return self.likelihood.predict_by_draws(gaussian, SAMPLES, generator)


def _biased(means: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Centred means (n, k) with a class bias, in units of scale; the means themselves without one."""
    return means if bias is None else means + centred(bias[None]) / scale[:, None]


def point_count(groups: list[Points]) -> int | float:
    """The number of points of all processes; with weights, how many times these count together."""
    count = torch.tensor(sum(points.weight for points in groups), dtype=torch.float64)
    current_processes().add_(count)
    whole = float(count)
    # PyTorch cannot divide by an integer of more than 64 bits.
    return int(whole) if whole.is_integer() and whole < 2**53 else whole


def _all_weights(groups: list[Points]) -> Tensor | None:
    """The weights of the points of all processes, (n,); None if all are 1."""
    ones = torch.ones_like
    own = [ones(each.by_prior.scale) if each.weights is None else each.weights for each in groups]
    weights = all_points([each.cpu() for each in own])
    return None if bool((weights == 1).all()) else weights


def all_points(parts: list[Tensor], *shape: int) -> Tensor:
    """Values (n, *shape) of the points of all processes, in float64."""
    mine = to_float64(torch.cat(parts)) if parts else torch.zeros(0, *shape, dtype=torch.float64)
    return current_processes().gather(mine)
