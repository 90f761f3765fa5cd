"""Tuning: choose the prior variance and, with a residual, its two numbers, by the evidence or by data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bitbayes import predictive
from bitbayes.errors import EmptyLoaderError
from bitbayes.logits import LogitGaussian
from bitbayes.model import (
    Batch,
    Data,
    check_data,
    check_loader,
    input_batches,
    labelled_batches,
    model_device,
    own_points,
    without_repeats,
)
from bitbayes.posterior import WeightPosterior
from bitbayes.precision import precise
from bitbayes.prior import Prior, variance_grid
from bitbayes.processes import together
from bitbayes.progress import track
from bitbayes.residual import Residual
from bitbayes.tuning.noise import NoiseLike
from bitbayes.tuning.objectives import Objective
from bitbayes.tuning.points import SEED, Candidate, Points, kept_points, thinned
from bitbayes.tuning.search import largest_within, least, search, search_pairs

# Candidates whose predictions are made in one go: what a small operation costs is mostly its start.
CANDIDATES_AT_ONCE = 5
# The share of the validation inputs to which the residual adds nothing.
INSIDE = 0.99
# How much of the negative log-likelihood on validation data the residual may cost.
RESIDUAL_PRICE = 0.005
# Some points, and noise like each process's.
Shares = tuple[list["Points"], list[NoiseLike]]
# Seven a decade.
RESIDUAL_VARIANCES = variance_grid(113)


def tune_by_evidence(posterior: WeightPosterior, *, each_layer: bool) -> float | dict[str, float]:
    """The prior variance of most evidence, or each layer's by itself: the evidence is a sum over layers."""
    grid = posterior.candidates()

    def best(names: Iterable[str]) -> float:
        costs = torch.stack([posterior.evidence_penalty(Prior(value), names) for value in grid])
        return grid[least(costs)]

    return {name: best([name]) for name in posterior.names} if each_layer else best(posterior.names)


@torch.no_grad()
def tune_on_data(
    posterior: WeightPosterior,
    residual: Residual | None,
    now: Candidate,
    method: str,
    objective: Objective,
    loader: Iterable[Any],
    outliers: Data | None,
    progress: bool | None,
    *,
    choose_residual: bool,
) -> Candidate:
    """The candidate of least cost, in one pass over validation data and outliers.

    Args:
        posterior: the Gaussian over weights.
        residual: if any.
        now: the numbers of now, of which the temperature is kept.
        method: how probabilities are predicted.
        objective: what a candidate costs.
        loader: validation data.
        outliers: a tensor or a loader; None is uniform noise like the validation data.
        progress: whether to show a bar.
        choose_residual: whether the residual's numbers are chosen as well, and not kept.
    """
    task = f"tune({type(objective).__name__}, weight={objective.outlier_weight}, {method!r}) at {now}"
    task += f" of {posterior.fitted.told()}"
    inside, outside = _one_pass(task, posterior, residual, objective, loader, outliers, progress)

    def costs(candidates: list[Candidate]) -> Tensor:
        total = mean_costs(inside, candidates, method, objective.data_cost)
        if objective.outlier_weight:
            total += objective.outlier_weight * mean_costs(
                outside, candidates, method, objective.outlier_cost
            )
        return total

    grid = posterior.candidates()
    if not choose_residual:
        best = search(grid, lambda some: costs([now._replace(prior_variance=each) for each in some]))
        return now._replace(prior_variance=best)
    roots = [points.root_kernel for points in inside if points.root_kernel is not None]
    threshold = float(all_points(roots).square().quantile(INSIDE))
    temperature = now.temperature
    if objective.joint:
        prior_variance, variance = search_pairs(
            grid,
            RESIDUAL_VARIANCES,
            lambda some: costs([Candidate(a, temperature, b, threshold) for a, b in some]),
        )
        return Candidate(prior_variance, temperature, variance, threshold)
    plain = costs([Candidate(each, temperature) for each in grid])
    place = least(plain)
    limit = float(plain[place]) * (1 + RESIDUAL_PRICE)
    wide = costs([Candidate(grid[place], temperature, each, threshold) for each in RESIDUAL_VARIANCES])
    return Candidate(grid[place], temperature, largest_within(RESIDUAL_VARIANCES, wide, limit), threshold)


def mean_costs(
    groups: list[Points], candidates: list[Candidate], method: str, cost: Callable[..., Tensor]
) -> Tensor:
    """For each candidate the mean of cost(logits, labels) over all points, (c,) in float64.

    Over those of all processes, if there are several.
    """
    totals = []
    for points in groups:
        sums = []
        for start in range(0, len(candidates), CANDIDATES_AT_ONCE):
            some = candidates[start : start + CANDIDATES_AT_ONCE]
            logits = _predict(points.gaussians(some), method)
            labels = () if points.labels is None else (points.labels.repeat(len(some)),)
            sums.append(cost(logits, *labels).reshape(len(some), -1).sum(1))
        totals.append(precise(torch.cat(sums)))
    # Read back from the device once, at the end.
    total = torch.stack(totals).sum(0).cpu() if totals else torch.zeros(len(candidates), dtype=torch.float64)
    count = point_count(groups)
    together().add_(total)
    return total / count


def point_count(groups: list[Points]) -> int:
    """The number of points, those of all processes together."""
    count = torch.tensor(sum(len(points.family) for points in groups))
    together().add_(count)
    return int(count)


def all_points(parts: list[Tensor], *shape: int) -> Tensor:
    """Numbers (n, *shape) of all points, those of all processes together, in float64."""
    if parts:
        return together().rows(precise(torch.cat(parts)))
    return together().rows(torch.zeros(0, *shape, dtype=torch.float64))


def _predict(gaussians: list[LogitGaussian], method: str) -> Tensor:
    """Drop-in logits, stacked; with the same random numbers for each, so that they can be compared."""
    if method != "mc":
        return predictive.predict(LogitGaussian.stacked(gaussians), method)

    def seeded(gaussian: LogitGaussian) -> Tensor:
        generator = torch.Generator(gaussian.scale.device).manual_seed(SEED)
        return predictive.predict(gaussian, method, generator=generator)

    return torch.cat([seeded(each) for each in gaussians])


def validation_points(
    posterior: WeightPosterior, residual: Residual | None, loader: Iterable[Any], progress: bool | None
) -> list[Points]:
    """What tuning needs of validation data, after one pass; of this process's share, if there are several."""
    return kept_points(posterior, residual, _validation_batches(posterior, loader, progress))


def shared_points(task: str, work: Callable[[], list[Points]], noise: Callable[[], NoiseLike]) -> Shares:
    """This process's points, which may be none, and noise like the inputs of each process.

    Raises if no process has points, and in all processes if one fails.
    """
    processes = together()

    def share() -> list[Points]:
        try:
            return work()
        except EmptyLoaderError:
            if processes.alone:
                raise
            return []

    def facts(mine: list[Points]) -> tuple[list[float], NoiseLike]:
        return [each.share for each in mine], noise().to(torch.device("cpu"))

    points, found = processes.agree(task, share, facts)
    kept = [each for shares, _ in found for each in shares]
    if not kept:
        raise EmptyLoaderError("the loaders of all processes are empty: they yielded no batch")
    # One process may have dropped more of its points than another: all of them count alike.
    return thinned(points, min(kept)), [each for _, each in found]


def _validation_batches(
    posterior: WeightPosterior, loader: Iterable[Any], progress: bool | None
) -> Iterator[Batch]:
    own = own_points(check_loader(loader))
    batches = track(loader, "tuning: validation data", together().shown(progress))
    return without_repeats(labelled_batches(batches, model_device(posterior.model)), own)


def _one_pass(
    task: str,
    posterior: WeightPosterior,
    residual: Residual | None,
    objective: Objective,
    loader: Iterable[Any],
    outliers: Data | None,
    progress: bool | None,
) -> tuple[list[Points], list[Points]]:
    """Validation points and, where they weigh anything, outliers."""
    device = model_device(posterior.model)
    noise = NoiseLike()

    def validation() -> Iterator[Batch]:
        nonlocal noise
        for batch in _validation_batches(posterior, loader, progress):
            if outliers is None and objective.outlier_weight:
                noise += NoiseLike.of(batch.inputs)
            yield batch

    def work() -> list[Points]:
        if outliers is not None:
            check_data(outliers)  # now, rather than after the validation data
        return kept_points(posterior, residual, validation())

    inside, every = shared_points(task, work, lambda: noise)
    if not objective.outlier_weight:
        return inside, []

    def outside() -> list[Points]:
        data: Any = NoiseLike.share(every, together().rank).to(device) if outliers is None else outliers
        own = own_points(data)
        if not isinstance(data, (Tensor, Mapping)):
            data = track(data, "tuning: outliers", together().shown(progress))
        batches = input_batches(data, device, positions=posterior.layout.positions)
        return kept_points(posterior, residual, without_repeats(batches, own))

    return inside, shared_points(f"{task}, outliers", outside, NoiseLike)[0]
