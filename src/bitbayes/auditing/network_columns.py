"""What an audit adds to a network: temperature scaling, the energy, and bitbayes, fitted and tuned.

bitbayes is fitted once and tuned twice: by default, and by the paper's objective, for the details.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes import metrics
from bitbayes.auditing.costs import Duration, duration_of, durations_in_turns, median_duration, now
from bitbayes.auditing.findings import PAPER, Cost
from bitbayes.auditing.generated import is_scalable
from bitbayes.auditing.predictions import (
    Methods,
    Rated,
    SharedPass,
    arguments_for,
    by_confidence,
    by_score,
    plain_logits,
    predict_labelled,
)
from bitbayes.auditing.predictors import BITBAYES, ENERGY, TEMPERATURE
from bitbayes.auditing.progress import ReportProgress, say_nothing
from bitbayes.auditing.reading import LabelledSet
from bitbayes.auditing.words import METHOD_TITLES
from bitbayes.baselines import TemperatureScaling
from bitbayes.errors import BitbayesError, EdgeWarning, FewPointsWarning, naming
from bitbayes.laplace import Laplace
from bitbayes.model import Inputs, model_device, row_count
from bitbayes.model.loaders.batches import by_place


@dataclass
class NetworkColumns:
    """The methods of a network, and what was found when they were fitted and tuned.

    methods: those that have a column.
    details: those that have none.
    ranked_by: by what each method ranks, as in `Ranking`.
    bayes: bitbayes' `Laplace`, or None.
    """

    methods: Methods
    details: Methods = field(default_factory=dict)
    ranked_by: dict[str, str] = field(default_factory=dict)
    bayes: Laplace | None = None
    chosen: dict[str, dict[str, float]] = field(default_factory=dict)
    cost: Cost | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    validation_nll: dict[str, float] = field(default_factory=dict)
    tuned_error: float = 0.0  # of bitbayes on the validation data
    edges: list[str] = field(default_factory=list)  # warnings of searches that ended at their edge


def network_columns(
    name: str,
    network: nn.Module,
    sets: Mapping[str, LabelledSet],
    first: Inputs,
    report: ReportProgress,
    notes: list[str],
) -> NetworkColumns:
    """Fit and tune what the audit adds to a network.

    The temperature is left out without validation data, and bitbayes without training or validation data.

    Args:
        name: of the network's own column.
        network: it is not changed.
        sets: "train" and "validation", as far as they are given.
        first: a batch of test inputs, to measure costs.
        report: called with the progress.
        notes: notes for the report are appended here.
    """
    shared = SharedPass(network)
    found = NetworkColumns({name: by_confidence(shared.probabilities)}, ranked_by={name: "confidence"})
    validation, device = sets.get("validation"), model_device(network)
    bayes: Laplace | None = None
    if validation is not None and "train" in sets:
        bayes = Laplace(network)
        fitting = TimedLoader(sets["train"], "Fitting", report, device)
        with naming("'train'"):
            fit_time = _time_without_loading(lambda: bayes.fit(fitting, progress=False), fitting)
        found.sizes["train"] = fitting.rows
    if validation is not None:
        scaled = TemperatureScaling(network)
        with _edge_warnings_as_notes(METHOD_TITLES[TEMPERATURE], found.edges), naming("'validation'"):
            scaled.fit(TimedLoader(validation, "Temperature", report, device), progress=False)
        found.methods[TEMPERATURE] = by_confidence(lambda x: shared.probabilities(x, scaled.temperature))
        found.ranked_by[TEMPERATURE] = "confidence"
        found.chosen[TEMPERATURE] = {"temperature": float(scaled.temperature)}
    found.methods[ENERGY], found.ranked_by[ENERGY] = shared.by_energy, "energy"
    if validation is not None and bayes is not None:
        paper = copy.copy(bayes)  # shares the fitted posterior, and gets a prior variance of its own
        tuning = TimedLoader(validation, "Tuning", report, device, extra_steps=1)  # for the candidates
        with _edge_warnings_as_notes(BITBAYES, found.edges), naming("'validation'"):
            tune_time = _time_without_loading(lambda: bayes.tune(tuning, progress=False), tuning)
        report(tuning.stage, 1, 1)
        found.bayes = bayes
        found.methods[BITBAYES], found.ranked_by[BITBAYES] = by_score(bayes), "score"
        found.chosen[BITBAYES] = _chosen_numbers(bayes)
        report("Costs", 0, 1)
        found.cost = _measure_cost(
            bayes, arguments_for(network)(first), (fitting, fit_time), (tuning, tune_time)
        )
        report("Costs", 1, 1)
        if _tune_as_the_paper(paper, validation, report, notes):
            found.details[PAPER] = by_score(paper)
            found.chosen[PAPER] = {"prior_variance": _chosen_numbers(paper)["prior_variance"]}
    if validation is not None:
        with naming("'validation'"):
            predicted, labels = predict_labelled(found.methods, validation.batches())
        found.sizes["validation"] = len(labels)
        found.errors["validation"] = count_errors(predicted[name], labels)
        if found.bayes is not None:
            found.tuned_error = count_errors(predicted[BITBAYES], labels) / len(labels)
        found.validation_nll = {m: metrics.nll(rated.probs, labels) for m, rated in predicted.items()}
    return found


def count_errors(rated: Rated, labels: Tensor) -> int:
    """Return how many answers are wrong."""
    return int((rated.probs.argmax(1) != labels).sum())


class TimedLoader:
    """A loader that counts its rows, measures the time spent waiting for data, and reports progress.

    Args:
        loader: the loader of (x, y) or of mappings.
        stage: the name of the stage for `report`.
        report: called before and after each batch.
        device: the model's device, for the clock.
        extra_steps: the number of steps of the stage that follow after the loader.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        stage: str,
        report: ReportProgress,
        device: torch.device,
        extra_steps: int = 0,
    ) -> None:
        self.loader, self.stage, self.report, self.device = loader, stage, report, device
        self.extra_steps = extra_steps
        self.rows, self.waiting = 0, Duration(0.0, 0.0)

    def __iter__(self) -> Iterator[Any]:
        self.rows, self.waiting = 0, Duration(0.0, 0.0)
        length = length_hint(self.loader)  # 0 if it is unknown, as for a streaming DataLoader
        total = length + self.extra_steps if length else None
        requested = now(self.device)
        for done, batch in enumerate(self.loader):
            waited = now(self.device).minus(requested)
            self.waiting = Duration(self.waiting.seconds + waited.seconds, self.waiting.work + waited.work)
            self.report(self.stage, done, total)
            yield batch
            self.rows += row_count(batch if isinstance(batch, Mapping) else by_place(batch[0]))
            self.report(self.stage, done + 1, total)
            requested = now(self.device)


def _tune_as_the_paper(
    bayes: Laplace, validation: LabelledSet, report: ReportProgress, notes: list[str]
) -> bool:
    """Choose the prior variance by the paper's objective, on noise but never on the scored outliers.

    Returns whether that was possible. If not, a note says why.
    """
    device = model_device(bayes.model)
    first = arguments_for(bayes.model)(validation.first().inputs)
    tuning = TimedLoader(validation, METHOD_TITLES[PAPER], report, device, extra_steps=1)  # for the noise
    left_out = f"“{tuning.stage}” is left out of the details:"
    if not isinstance(first, Tensor) or not is_scalable(first):
        kind = "are integers" if isinstance(first, Tensor) else "are a mapping"
        notes.append(f"{left_out} it needs noise in one floating-point tensor, and the inputs {kind}.")
        return False
    try:
        with _edge_warnings_as_notes(tuning.stage, notes):
            bayes.tune(tuning, objective="ood", progress=False)
    except BitbayesError as error:
        notes.append(f"{left_out} {error}")
        return False
    finally:
        report(tuning.stage, 1, 1)
    return True


def _chosen_numbers(bayes: Laplace) -> dict[str, float]:
    """Return the chosen prior variance, temperature, and the residual's two variances."""
    names = "prior_variance", "temperature", "near_variance", "beyond_variance"
    return {name: float(getattr(bayes, name)) for name in names}


def _time_without_loading(work: Callable[[], object], loader: TimedLoader) -> Duration:
    """Return the duration of `work`, without the time that it waits for the loader."""
    return duration_of(work, loader.device).minus(loader.waiting)


def _measure_cost(
    bayes: Laplace,
    x: Inputs,
    fit: tuple[TimedLoader, Duration],
    tune: tuple[TimedLoader, Duration],
) -> Cost:
    """Measure short steps again, and compare them with a plain forward pass over the training data.

    Args:
        bayes: the tuned `Laplace`.
        x: a batch of inputs.
        fit, tune: the loaders and the durations of the first run.
    """
    model, (fitting, fit_time), (tuning, tune_time) = bayes.model, fit, tune

    def fit_again() -> Duration:
        again = TimedLoader(fitting.loader, "", say_nothing, fitting.device)
        return _time_without_loading(lambda: Laplace(model).fit(again, progress=False), again)

    def tune_again() -> Duration:
        again, other = TimedLoader(tuning.loader, "", say_nothing, tuning.device), copy.copy(bayes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EdgeWarning)  # the first run has told both
            warnings.simplefilter("ignore", FewPointsWarning)
            return _time_without_loading(lambda: other.tune(again, progress=False), again)

    fit_time, tune_time = median_duration(fit_time, fit_again), median_duration(tune_time, tune_again)
    forward, prediction = durations_in_turns(
        lambda: plain_logits(model, x), lambda: bayes.predict_and_score(x), fitting.device
    )
    n = row_count(x)
    one_pass = forward.work / n * fitting.rows
    return Cost(
        fit_seconds=fit_time.seconds,
        tune_seconds=tune_time.seconds,
        predict_milliseconds=1000 * prediction.seconds / n,
        forward_milliseconds=1000 * forward.seconds / n,
        fit=fit_time.work / one_pass,
        tune=tune_time.work / one_pass,
        predict=prediction.work / forward.work,
    )


@contextmanager
def _edge_warnings_as_notes(column: str, notes: list[str]) -> Iterator[None]:
    """Turn each `EdgeWarning` into a note of the report, and pass all other warnings on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EdgeWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, EdgeWarning):
            notes.append(f"{column}: {warning.message}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
