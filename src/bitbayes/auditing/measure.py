"""The audit itself: how overconfident is a classifier, and does a Laplace approximation help?

`audit` compares methods on the same inputs: the plain network, the network with a tuned temperature, and the
network with a Gaussian over its last layer, tuned by default and by the paper's objective.
"""

import copy
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import length_hint
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bitbayes import metrics
from bitbayes._version import __version__
from bitbayes.auditing.costs import Duration, duration_of, durations_in_turns, median_duration, now
from bitbayes.auditing.examples import TestExamples, choose_examples
from bitbayes.auditing.findings import PAPER, Cost, Detail
from bitbayes.auditing.generated import is_scalable, noise_like, scaled
from bitbayes.auditing.predictions import (
    Methods,
    Rated,
    SharedPass,
    by_confidence,
    by_score,
    plain_logits,
    predict_test,
)
from bitbayes.auditing.prior_curve import measure_prior_curve
from bitbayes.auditing.progress import ReportProgress, say_nothing, shown
from bitbayes.auditing.rankings import rank_test
from bitbayes.auditing.report import AuditReport
from bitbayes.auditing.scores import (
    predict_sets,
    score_limits,
    score_outliers,
    score_rays,
    score_scaled,
    score_test,
)
from bitbayes.auditing.words import METHOD_TITLES, printable
from bitbayes.baselines import TemperatureScaling
from bitbayes.errors import BitbayesError, DataError, EdgeWarning
from bitbayes.laplace import Laplace
from bitbayes.model import Inputs, Loader, check_loader, labelled_batches, model_device, row_count
from bitbayes.model.loaders.batches import by_place

# The mean of this many confidences is known to about two percentage points.
MOST_GENERATED_OUTLIERS = 1000
GENERATED = ("Uniform noise", "Noise × 100", "Noise × 2,000", "Test inputs × 2,000")


def audit(
    model: nn.Module,
    train: Loader,
    validation: Loader,
    test: Loader,
    outliers: Mapping[str, Loader | Tensor] | None = None,
    *,
    subject: str | None = None,
    seed: int = 0,
    command: str | None = None,
    progress: bool | ReportProgress | None = None,
) -> AuditReport:
    """Measure how overconfident a classifier is, and whether bitbayes helps.

    The audit compares the plain network, temperature scaling ("temperature") and the last-layer Laplace
    approximation. The approximation is fitted once and tuned twice: by default ("bitbayes"), and by the
    paper's objective ("paper"), which also uses uniform noise. If noise makes no sense for the inputs,
    "paper" is left out, and a note says so.

    All scores are on the test data and on outliers. In addition to the given outliers the audit generates
    uniform noise over the range of the test inputs, δ·noise and δ·test inputs. In mappings, the
    floating-point tensors are replaced or scaled. It cannot generate them if the inputs are integers; then it
    adds a note.

    Args:
        model: a trained network whose output is one linear layer. It is not changed.
        train: a loader of (x, y). The Laplace approximation is fitted on it.
        validation: a loader of (x, y), on which the prior variances, the temperatures and the residual are
            chosen.
        test: a loader of (x, y).
        outliers: inputs that belong to no class: a tensor or a loader for each name.
        subject: the title of the report. The default is the name of the model's class.
        seed: of the generated noise.
        command: the command that repeats the audit, for the report.
        progress: whether to show bars; None: on terminals and in notebooks. Or a function that is called
            with the name of a stage, the steps done, and the number of all its steps (None if unknown).

    Returns:
        The numbers, with `save(path)` for the report as a page, `to_dict()` and `to_json()`, and a summary
        in a notebook.

    >>> import bitbayes as bb
    >>> _ = torch.manual_seed(0)
    >>> x = torch.cat([torch.randn(60, 2) - 3, torch.randn(60, 2) + 3])
    >>> data = [(x, torch.arange(120) // 60)]
    >>> found = bb.audit(nn.Linear(2, 2), data, data, data, {"far right": x + 50})
    >>> [outlier.name for outlier in found.outliers]
    ['far right', 'Uniform noise', 'Noise × 100', 'Noise × 2,000', 'Test inputs × 2,000']
    >>> found.methods, found.sizes["test"]
    (('plain', 'temperature', 'energy', 'bitbayes'), 120)
    """
    request = AuditRequest(
        {"train": train, "validation": validation, "test": test},
        outliers,
        seed,
        subject or type(model).__name__,
        command or f"bb.audit(model, train, validation, test, outliers, seed={seed})",
    )
    with shown(progress) as report:
        return _measure(model, request, report)


class AuditRequest(NamedTuple):
    """What is audited: loaders of (x, y) by name, and the other arguments of `audit`."""

    loaders: dict[str, Loader]
    outliers: Mapping[str, Loader | Tensor] | None
    seed: int
    subject: str
    command: str


def _measure(model: nn.Module, request: AuditRequest, report: ReportProgress) -> AuditReport:
    """Run the audit and report its progress to `report`."""
    started = time.perf_counter()
    device, seed = model_device(model), request.seed
    notes: list[str] = []
    train, validation, test = request.loaders.values()
    first = {name: _first_inputs(name, loader, model) for name, loader in request.loaders.items()}
    given = _check_outliers(request.outliers)

    bayes, scaled = Laplace(model), TemperatureScaling(model)
    fitting = TimedLoader(train, "Fitting", report, device)
    tuning = TimedLoader(validation, "Tuning", report, device, extra_steps=1)  # for the candidates
    fit_time = _time_without_loading(lambda: bayes.fit(fitting, progress=False), fitting)
    with _edge_warnings_as_notes("Temperature", notes):
        scaled.fit(TimedLoader(validation, "Temperature", report, device), progress=False)
    paper = copy.copy(bayes)  # shares the fitted posterior, and gets a prior variance of its own
    tune_time = _time_without_loading(lambda: bayes.tune(tuning, progress=False), tuning)
    report(tuning.stage, 1, 1)

    network = SharedPass(model)
    methods: Methods = {
        "plain": by_confidence(network.probabilities),
        "temperature": by_confidence(lambda x: network.probabilities(x, scaled.temperature)),
        "energy": network.by_energy,
        "bitbayes": by_score(bayes),
    }
    ranked_by = {"plain": "confidence", "temperature": "confidence", "energy": "energy", "bitbayes": "score"}
    report("Costs", 0, 1)
    cost = _measure_cost(bayes, methods, first["test"], (fitting, fit_time), (tuning, tune_time))
    report("Costs", 1, 1)
    on_validation, validation_labels, _ = predict_test(methods, validation, model, 0, lambda *_: None)
    chosen = {"temperature": {"temperature": float(scaled.temperature)}, "bitbayes": _chosen_numbers(bayes)}
    everything = methods
    if _tune_as_the_paper(paper, validation, first["validation"], report, notes):
        everything = methods | {PAPER: by_score(paper)}
        chosen[PAPER] = {"prior_variance": _chosen_numbers(paper)["prior_variance"]}
    test_examples = TestExamples()
    testing = TimedLoader(test, "Test data", report, device)
    predicted, labels, inputs = predict_test(
        everything, testing, model, MOST_GENERATED_OUTLIERS, test_examples
    )

    generated = _generate_outliers(inputs, seed, notes)
    sets = predict_sets(everything, given + generated, model, report, notes)
    own = {method: rated for method, rated in predicted.items() if method in methods}
    rankings = rank_test(own, [each.ranked for each in sets], ranked_by)
    scored, groups, outlier_details = score_outliers(predicted, rankings, sets)
    on_test = score_test(predicted, labels, methods)
    curve = None
    if "unfamiliar" in groups:
        members = [(n, data) for n, _, data in given + generated if n in groups["unfamiliar"].sets]
        curve = measure_prior_curve(bayes, test, members, report)
    slightly = score_scaled(methods, inputs, labels, model, notes) if inputs is not None and generated else []
    ray = score_rays(methods, inputs, model, report, notes) if inputs is not None and generated else None
    limits = score_limits(bayes, inputs, labels, report, notes) if inputs is not None and ray else []
    changed = predicted["plain"].probs.argmax(1) != predicted["bitbayes"].probs.argmax(1)  # (n,)
    return AuditReport(
        subject=printable(request.subject),
        classes=predicted["plain"].probs.shape[1],
        base="plain",
        ours="bitbayes",
        sizes={"train": fitting.rows, "validation": tuning.rows, "test": len(labels)},
        errors={
            "validation": count_errors(on_validation["plain"], validation_labels),
            "test": count_errors(predicted["plain"], labels),
        },
        validation_nll={
            method: metrics.nll(rated.probs, validation_labels) for method, rated in on_validation.items()
        },
        test={method: on_test.pop(method) for method in methods},
        details={method: Detail(each, outlier_details[method]) for method, each in on_test.items()},
        rankings=rankings,
        outliers=scored,
        groups=groups,
        prior_curve=curve,
        examples=choose_examples(test_examples, [(s.name, s.kind, s.examples) for s in sets], rankings),
        scaled=slightly,
        ray=ray,
        infinity=limits,
        changed_labels=int(changed.sum()),
        chosen=chosen,
        cost=cost,
        seconds=time.perf_counter() - started,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        command=printable(request.command),
        versions=_versions(device),
        notes=[printable(note) for note in notes],
    )


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


def _first_inputs(name: str, loader: Iterable[Any], model: nn.Module) -> Inputs:
    """Return the inputs of the first batch. This finds an unsuitable loader before any work is done."""
    if isinstance(loader, Iterator):
        raise DataError(
            f"{name!r} is a {type(loader).__name__}, which can be read only once: "
            "give a DataLoader, or a list of batches"
        )
    try:
        return next(labelled_batches(check_loader(loader), model)).inputs
    except DataError as error:
        raise DataError(f"{name!r}: {error}") from error


def _check_outliers(outliers: Mapping[str, Loader | Tensor] | None) -> list[tuple[str, str, Any]]:
    """Return the name, the kind and the inputs of each given set."""
    if outliers is not None and not isinstance(outliers, Mapping):
        raise DataError(
            f"outliers is a {type(outliers).__name__}: give a dict from a name to a tensor of inputs or a "
            'loader, such as {"letters": letters_loader}'
        )
    sets: list[tuple[str, str, Any]] = []
    for name, data in (outliers or {}).items():
        if printable(name) in (*GENERATED, *(other for other, _, _ in sets)):
            raise DataError(
                f"outliers {name!r}: the report has another set of this name: choose another name"
            )
        if isinstance(data, Tensor) and data.numel() == 0:
            raise DataError(f"outliers {name!r}: a tensor of shape {tuple(data.shape)} holds no inputs")
        if isinstance(data, Iterator):
            raise DataError(
                f"outliers {name!r}: a {type(data).__name__} can be read only once: "
                "give a DataLoader, a tensor, or a list of batches"
            )
        sets.append((printable(name), "given", data))
    return sets


def _tune_as_the_paper(
    bayes: Laplace, validation: Iterable[Any], first: Inputs, report: ReportProgress, notes: list[str]
) -> bool:
    """Choose the prior variance by the paper's objective, on noise but never on the scored outliers.

    Returns whether that was possible. If not, a note says why.
    """
    device = model_device(bayes.model)
    tuning = TimedLoader(validation, METHOD_TITLES["paper"], report, device, extra_steps=1)  # for the noise
    left_out = f"The column “{tuning.stage}” is left out:"
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


def _generate_outliers(inputs: Inputs | None, seed: int, notes: list[str]) -> list[tuple[str, str, Any]]:
    """Return noise, scaled noise and scaled test inputs; or nothing, and a note that says why.

    Each set is a name, a kind and its inputs.
    """
    if inputs is None:
        notes.append("The inputs hold no floating-point numbers: noise and far-away inputs were skipped.")
        return []
    # `tune` draws noise from small seeds. A distant seed makes sure that the scored noise is different.
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    try:
        noise = noise_like(inputs, MOST_GENERATED_OUTLIERS, generator)
    except DataError as error:
        notes.append(f"Noise and far-away inputs were skipped: {error}")
        return []
    # 100 and 2,000 are the paper's δ for two classes, and for more.
    inputs_of = noise, scaled(noise, 100), scaled(noise, 2000), scaled(inputs, 2000)
    return list(zip(GENERATED, ("noise", "far", "far", "far"), inputs_of, strict=True))


def _time_without_loading(work: Callable[[], object], loader: TimedLoader) -> Duration:
    """Return the duration of `work`, without the time that it waits for the loader."""
    return duration_of(work, loader.device).minus(loader.waiting)


def _measure_cost(
    bayes: Laplace,
    methods: Methods,
    x: Inputs,
    fit: tuple[TimedLoader, Duration],
    tune: tuple[TimedLoader, Duration],
) -> Cost:
    """Measure short steps again, and compare them with a plain forward pass over the training data.

    Args:
        bayes, methods: the tuned `Laplace`, and all methods.
        x: a batch of inputs.
        fit, tune: the loaders and the durations of the first run.
    """
    model, (fitting, fit_time), (tuning, tune_time) = bayes.model, fit, tune

    def fit_again() -> Duration:
        again = TimedLoader(fitting.loader, "", say_nothing, fitting.device)
        return _time_without_loading(lambda: Laplace(model).fit(again, progress=False), again)

    def tune_again() -> Duration:
        again, other = TimedLoader(tuning.loader, "", say_nothing, tuning.device), copy.copy(bayes)
        return _time_without_loading(lambda: other.tune(again, progress=False), again)

    fit_time, tune_time = median_duration(fit_time, fit_again), median_duration(tune_time, tune_again)
    forward, prediction = durations_in_turns(
        lambda: plain_logits(model, x), lambda: methods["bitbayes"](x), fitting.device
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


def count_errors(rated: Rated, labels: Tensor) -> int:
    """Return how many answers are wrong."""
    return int((rated.probs.argmax(1) != labels).sum())


def _versions(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "bitbayes": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": name,
        "threads": str(torch.get_num_threads()),
    }
