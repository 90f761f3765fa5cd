"""Tuning by the evidence, and by "ood" and "nll": the prior variance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bitbayes.model import (
    Batch,
    Data,
    Inputs,
    Unpadded,
    check_data,
    input_batches,
    model_device,
)
from bitbayes.posteriors.base import Noise, WeightPosterior
from bitbayes.prior import Prior
from bitbayes.processes import current_processes
from bitbayes.progress import track
from bitbayes.settings import Settings
from bitbayes.tuned import TunedData
from bitbayes.tuning.costs import Costs
from bitbayes.tuning.noise import NoiseLike
from bitbayes.tuning.objectives import Objective
from bitbayes.tuning.points import Points, kept_points, shared_points
from bitbayes.tuning.request import TuningRequest
from bitbayes.tuning.search import least, search

# Prior and noise variance are chosen in turns, at most so many times.
NOISE_STEPS = 20


def tune_by_evidence(
    posterior: WeightPosterior, now: Settings, *, each_layer: bool, fixed: Noise
) -> Settings:
    """The settings with the prior variance of the largest evidence, which is a sum over layers.

    Args:
        posterior: the Gaussian over the weights.
        now: the present settings; all others are kept.
        each_layer: whether to choose one for each layer.
        fixed: a noise variance that was given and is kept, or None. For regression, the one of the largest
            evidence is chosen as well.
    """
    grid, has_noise = posterior.candidates(), posterior.likelihood.has_noise
    noise = posterior.noise_of(fixed) if has_noise else None

    def best(names: Iterable[str]) -> float:
        costs = torch.stack([posterior.evidence_penalty(Prior(value), names, noise) for value in grid])
        return grid[least(costs)]

    chosen: float | dict[str, float] = 1.0
    # Prior and noise variance depend on each other: each step raises the evidence.
    for _ in range(NOISE_STEPS if has_noise and fixed is None else 1):
        before = chosen, noise
        chosen = {name: best([name]) for name in posterior.names} if each_layer else best(posterior.names)
        if has_noise and fixed is None:
            noise = posterior.best_noise(Prior(chosen))
        if (chosen, noise) == before:
            break
    return replace(now, prior_variance=chosen, noise_variance=noise if fixed is None else fixed)


@torch.no_grad()
def tune_on_data(
    request: TuningRequest, objective: Objective, outliers: Data | None
) -> tuple[Settings, TunedData]:
    """The settings with the prior variance of least cost, in one pass over validation data and outliers.

    And what is kept of the validation data.

    Args:
        request: what is tuned; all its other settings are kept.
        objective: what a candidate costs.
        outliers: a tensor or a loader; None is uniform noise like the validation data.
    """
    now = request.settings
    inside, outside = (
        Costs(points, request.posterior.likelihood, request.method)
        for points in _one_pass(request, objective, outliers)
    )

    def costs(some: list[float]) -> Tensor:
        candidates = [replace(now, prior_variance=each) for each in some]
        total = inside.mean(candidates, objective.data_cost)
        if objective.outlier_weight:
            total += objective.outlier_weight * outside.mean(candidates, objective.outlier_cost)
        return total

    found = replace(now, prior_variance=search(request.posterior.candidates(), costs))
    return found, inside.tuned_data(found, request.entry())


def _one_pass(
    request: TuningRequest, objective: Objective, outliers: Data | None
) -> tuple[list[Points], list[Points]]:
    """Validation points and, if their weight is not 0, outliers."""
    noise = NoiseLike()

    def task() -> str:
        name, weight = type(objective).__name__, objective.outlier_weight
        now = f"at {request.settings} of {request.posterior.fitted.summary()}"
        return f"tune({name}, weight={weight}, {request.method!r}) {now}"

    def look(inputs: Inputs) -> None:
        nonlocal noise
        if outliers is None and objective.outlier_weight:
            noise += NoiseLike.of(inputs)

    def validation() -> list[Points]:
        if outliers is not None:
            check_data(outliers)  # before the pass over the validation data
        return kept_points(request.posterior, request.validation_batches(look))

    inside, every = shared_points(task, validation, lambda: noise)
    if not objective.outlier_weight:
        return inside, []
    data: Any = outliers
    if outliers is None:
        data = NoiseLike.share(every, current_processes().rank).to(model_device(request.posterior.model))
    found = lambda: kept_points(request.posterior, _outlier_batches(request, data))  # noqa: E731
    return inside, shared_points(lambda: f"{task()}, outliers", found, NoiseLike)[0]


def _outlier_batches(request: TuningRequest, data: Any) -> Iterator[Batch]:
    """The batches of outliers, without points that a sampler repeats, to be measured."""
    unpadded = Unpadded(data)
    if not isinstance(data, (Tensor, Mapping)):
        data = track(data, "tuning: outliers", request.progress)
    posterior = request.posterior
    form, positions = posterior.fitted.inputs, posterior.layout.positions
    width = None if posterior.likelihood.one_label else posterior.outputs
    for batch in input_batches(data, posterior.model, form=form, positions=positions, width=width):
        own = unpadded(batch)
        if own is not None:
            yield request.observed(own)
