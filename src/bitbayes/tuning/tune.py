"""Tuning: choose the prior variance and, with a residual, its two numbers, by the evidence or by data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitbayes import predictive
from bitbayes.logits import LogitGaussian
from bitbayes.model import Batch, Data, check_loader, input_batches, labelled_batches, model_device
from bitbayes.posterior import LogitFamily, WeightPosterior
from bitbayes.prior import Prior, variance_grid
from bitbayes.progress import track
from bitbayes.residual import Residual, deviations
from bitbayes.tuning.noise import NoiseLike
from bitbayes.tuning.objectives import Objective
from bitbayes.tuning.search import largest_within, least, search, search_pairs

# Candidates whose predictions are made in one go: what a small operation costs is mostly its start.
CANDIDATES_AT_ONCE = 5
# The share of the validation inputs to which the residual adds nothing.
INSIDE = 0.99
# How much of the negative log-likelihood on validation data the residual may cost.
RESIDUAL_PRICE = 0.005
# Seven a decade.
RESIDUAL_VARIANCES = variance_grid(113)
SEED = 0


class Candidate(NamedTuple):
    """Numbers to be tried together; `residual_variance` None is without the residual."""

    prior_variance: float
    residual_variance: float | None = None


class Chosen(NamedTuple):
    """What tuning chose; the last two None where there is no residual."""

    prior_variance: float
    residual_variance: float | None = None
    residual_threshold: float | None = None


@dataclass(frozen=True)
class Points:
    """Some points: the Gaussians over their logits, their labels (n,) and the residual's √k(x) (n,), if any."""

    family: LogitFamily
    labels: Tensor | None
    root_kernel: Tensor | None

    def gaussian(self, candidate: Candidate, threshold: float) -> LogitGaussian:
        gaussian = self.family.at(Prior(candidate.prior_variance))
        if candidate.residual_variance is None or self.root_kernel is None:
            return gaussian
        return gaussian.plus_independent(deviations(self.root_kernel, candidate.residual_variance, threshold))

    @staticmethod
    def joined(parts: list[Points]) -> Points:
        if len(parts) == 1:
            return parts[0]
        families = [part.family for part in parts]
        labels = [part.labels for part in parts if part.labels is not None]
        roots = [part.root_kernel for part in parts if part.root_kernel is not None]
        return Points(
            families[0].joined(families),
            torch.cat(labels) if labels else None,
            torch.cat(roots) if roots else None,
        )


def tune_by_evidence(posterior: WeightPosterior, *, each_layer: bool) -> float | dict[str, float]:
    """The prior variance of most evidence, or each layer's by itself: the evidence is a sum over layers."""
    grid = posterior.candidates()

    def best(names: Iterable[str]) -> float:
        costs = [torch.stack([posterior.occam(name, value) for name in names]).sum() for value in grid]
        return grid[least(torch.stack(costs))]

    return {name: best([name]) for name in posterior.names} if each_layer else best(posterior.names)


@torch.no_grad()
def tune_on_data(
    posterior: WeightPosterior,
    residual: Residual | None,
    method: str,
    objective: Objective,
    loader: Iterable[Any],
    outliers: Data | None,
    progress: bool | None,
) -> Chosen:
    """The candidate of least cost, in one pass over validation data and outliers.

    Args:
        posterior: the Gaussian over weights.
        residual: if any; its variance is chosen as well.
        method: how probabilities are predicted.
        objective: what a candidate costs.
        loader: validation data.
        outliers: a tensor or a loader; None is uniform noise like the validation data.
        progress: whether to show a bar.
    """
    inside, outside = _one_pass(posterior, residual, objective, loader, outliers, progress)
    costs = Costs(inside, outside, objective, method)
    grid = posterior.candidates()
    if residual is None:
        return Chosen(search(grid, lambda some: costs([Candidate(each) for each in some])))
    roots = [points.root_kernel for points in inside if points.root_kernel is not None]
    threshold = float(torch.cat(roots).square().quantile(INSIDE))
    costs = Costs(inside, outside, objective, method, threshold)
    if objective.outlier_weight:
        pair = search_pairs(grid, RESIDUAL_VARIANCES, lambda some: costs([Candidate(*each) for each in some]))
        return Chosen(*pair, threshold)
    plain = costs([Candidate(each) for each in grid])
    best = least(plain)
    limit = float(plain[best]) * (1 + RESIDUAL_PRICE)
    wide = costs([Candidate(grid[best], each) for each in RESIDUAL_VARIANCES])
    return Chosen(grid[best], largest_within(RESIDUAL_VARIANCES, wide, limit), threshold)


@dataclass(frozen=True)
class Costs:
    """The cost of candidates: of an objective, on points that have gone through the model."""

    inside: list[Points]
    outside: list[Points]
    objective: Objective
    method: str
    threshold: float = 0.0

    def __call__(self, candidates: list[Candidate]) -> Tensor:
        """The cost of each, (c,) in float64."""
        total = self._mean(self.inside, candidates, self._data_cost)
        if self.objective.outlier_weight:
            outliers = self._mean(self.outside, candidates, self._outlier_cost)
            total += self.objective.outlier_weight * outliers
        return total

    def _data_cost(self, logits: Tensor, labels: Tensor | None) -> Tensor:
        assert labels is not None
        return self.objective.data_cost(logits, labels.repeat(len(logits) // len(labels)))

    def _outlier_cost(self, logits: Tensor, labels: Tensor | None) -> Tensor:
        return self.objective.outlier_cost(logits)

    def _mean(
        self,
        groups: list[Points],
        candidates: list[Candidate],
        cost: Callable[[Tensor, Tensor | None], Tensor],
    ) -> Tensor:
        """For each candidate the mean cost over all points, (c,) in float64."""
        totals, count = torch.zeros(len(candidates), dtype=torch.float64), 0
        for points in groups:
            sums = []
            for start in range(0, len(candidates), CANDIDATES_AT_ONCE):
                some = candidates[start : start + CANDIDATES_AT_ONCE]
                logits = self._predict([points.gaussian(each, self.threshold) for each in some])
                sums.append(cost(logits, points.labels).reshape(len(some), -1).sum(1))
            totals += torch.cat(sums).cpu().double()
            count += len(points.family)
        return totals / count

    def _predict(self, gaussians: list[LogitGaussian]) -> Tensor:
        """Drop-in logits, stacked; with the same random numbers for each, so that they can be compared."""
        if self.method != "mc":
            return predictive.predict(LogitGaussian.stacked(gaussians), self.method)
        device = gaussians[0].mean.device
        return torch.cat(
            [
                predictive.predict(each, self.method, generator=torch.Generator(device).manual_seed(SEED))
                for each in gaussians
            ]
        )


def _one_pass(
    posterior: WeightPosterior,
    residual: Residual | None,
    objective: Objective,
    loader: Iterable[Any],
    outliers: Data | None,
    progress: bool | None,
) -> tuple[list[Points], list[Points]]:
    """Validation points and, where they weigh anything, outliers."""
    device = model_device(posterior.model)
    noise: NoiseLike | None = None
    make_noise = outliers is None and objective.outlier_weight > 0
    steps = labelled_batches(track(check_loader(loader), "tuning: validation data", progress), device)
    parts = []
    for batch, points in _observed(posterior, residual, steps):
        parts.append(points)
        if make_noise:
            more = NoiseLike.of(batch.inputs)
            noise = more if noise is None else noise + more
    inside = list(_joined(parts, posterior.rows_per_step))
    if not objective.outlier_weight:
        return inside, []
    data: Any = noise if outliers is None else outliers
    if not isinstance(data, (Tensor, Mapping)):
        data = track(data, "tuning: outliers", progress)
    outside = [points for _, points in _observed(posterior, residual, input_batches(data, device))]
    return inside, list(_joined(outside, posterior.rows_per_step))


def _observed(
    posterior: WeightPosterior, residual: Residual | None, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, Points]]:
    """Each batch after its forward pass, and what tuning needs of it."""
    for batch, family in posterior.families(batches):
        root = None if residual is None else residual.root_kernel(batch.inputs)
        yield batch, Points(family, batch.labels, root)


def _joined(parts: list[Points], rows: int) -> Iterator[Points]:
    """Neighbours put together as long as they have at most that many rows."""
    waiting: list[Points] = []
    for part in parts:
        if waiting and sum(len(each.family) for each in waiting) + len(part.family) > rows:
            yield Points.joined(waiting)
            waiting = []
        waiting.append(part)
    if waiting:
        yield Points.joined(waiting)
