"""The costs of candidates on points that were run through the model, over all processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bitbayes.likelihoods import SAMPLED_LOGITS, SAMPLES, Likelihood
from bitbayes.logits import LogitGaussian
from bitbayes.precision import to_float64
from bitbayes.processes import current_processes
from bitbayes.settings import Settings
from bitbayes.tuning.points import SEED, Points

# How many candidates to predict at once, so that kernel launches are amortised.
CANDIDATES_AT_ONCE = 5


class Costs:
    """Mean costs of candidates on groups of points.

    Args:
        groups: this process's share of the points, which may be empty.
        likelihood: of the labels.
        method: how probabilities are predicted: a closed form, or "mc".
    """

    def __init__(self, groups: list[Points], likelihood: Likelihood, method: str) -> None:
        self.groups, self.likelihood, self.method = groups, likelihood, method
        self.count = point_count(groups)

    def mean(self, candidates: list[Settings], cost: Callable[..., Tensor]) -> Tensor:
        """For each candidate the mean of cost(drop-in logits, labels) over all points, (c,) in float64."""
        totals = []
        for points in self.groups:
            sums = []
            for start in range(0, len(candidates), CANDIDATES_AT_ONCE):
                some = candidates[start : start + CANDIDATES_AT_ONCE]
                gaussians = points.gaussians(some)
                if self.method == SAMPLED_LOGITS:
                    logits = torch.cat([self._sampled(each) for each in gaussians])
                else:
                    logits = self.likelihood.predict(LogitGaussian.stacked(gaussians), self.method)
                labels = () if points.labels is None else (points.labels.repeat(len(some)),)
                # In float64: of float32 the rounding would depend on the order of the points.
                sums.append(to_float64(cost(logits, *labels)).reshape(len(some), -1).sum(1))
            totals.append(torch.cat(sums))
        # Read back from the device once, at the end.
        none = torch.zeros(len(candidates), dtype=torch.float64)
        total = torch.stack(totals).sum(0).cpu() if totals else none
        current_processes().add_(total)
        return total / self.count

    def _sampled(self, gaussian: LogitGaussian) -> Tensor:
        """Drop-in logits, with the same random numbers for each candidate, so that these can be compared."""
        generator = torch.Generator(gaussian.scale.device).manual_seed(SEED)
        return self.likelihood.predict_by_draws(gaussian, SAMPLES, generator)


def point_count(groups: list[Points]) -> int:
    """The number of points of all processes."""
    count = torch.tensor(sum(len(points.by_prior.scale) for points in groups))
    current_processes().add_(count)
    return int(count)


def all_points(parts: list[Tensor], *shape: int) -> Tensor:
    """Values (n, *shape) of the points of all processes, in float64."""
    mine = to_float64(torch.cat(parts)) if parts else torch.zeros(0, *shape, dtype=torch.float64)
    return current_processes().gather(mine)
