"""How overconfident is a classifier, and what does it look like after being a bit Bayesian? In numbers.

`audit` compares three methods on the same inputs: the plain network, the network with a tuned temperature,
and the network with a Gaussian over its last layer. `bitbayes.auditing` makes a table and a page of it.
"""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes import metrics
from bitbayes._version import __version__
from bitbayes.auditing.findings import (
    METHODS,
    AtInfinity,
    Audit,
    Cost,
    OutlierScores,
    OutlierSet,
    Ray,
    Reliability,
    TestScores,
)
from bitbayes.baselines import TemperatureScaling
from bitbayes.errors import BitbayesError, DataError, EdgeWarning
from bitbayes.laplace import Laplace
from bitbayes.likelihood import likelihood_for
from bitbayes.model import Inputs, call, check_loader, eval_mode, items, model_device
from bitbayes.model.batches import batches
from bitbayes.outliers import far_away, uniform_noise
from bitbayes.precision import working

HISTOGRAM_BINS = 20
DELTAS = torch.logspace(0, 4, 13, dtype=torch.float64).tolist()
MOST_INPUTS = 1000  # a mean of so many confidences is known to about two percentage points
MOST_ON_RAY = 200  # fewer, because each is predicted once for every δ
MOST_A_CLASS = 50  # whose limits are computed
CHUNK = 256

Progress = Callable[[str, int, int | None], None]
Methods = dict[str, Callable[[Inputs], Tensor]]
Probabilities = dict[str, Tensor]  # by method, each (n, k)


def audit(
    model: nn.Module,
    train: Iterable[Any],
    validation: Iterable[Any],
    test: Iterable[Any],
    outliers: Mapping[str, Iterable[Any] | Tensor] | None = None,
    *,
    subject: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Compare the plain network, temperature scaling and the last-layer Laplace approximation.

    The Laplace approximation is fitted on `train`; prior variance and temperature are tuned on `validation`;
    every score is on `test` and on outliers: those given, uniform noise over the range of the test inputs,
    δ·noise and δ·test inputs. Where inputs cannot be scaled (integers, mappings) only the given ones remain,
    and `notes` says so. Loaders yield `(x, y)`; outliers are tensors or loaders. `progress` is called
    with a stage, the steps done, and the steps in all (`None` if unknown).

    >>> _ = torch.manual_seed(0)
    >>> x = torch.cat([torch.randn(60, 2) - 3, torch.randn(60, 2) + 3])
    >>> data = [(x, torch.arange(120) // 60)]
    >>> found = audit(nn.Linear(2, 2), data, data, data, {"far right": x + 50})
    >>> [outlier.name for outlier in found.outliers]
    ['far right', 'Uniform noise', 'Noise × 100', 'Noise × 2,000', 'Test inputs × 2,000']
    >>> sorted(found.test), found.sizes["test"]
    (['bayesian', 'plain', 'temperature'], 120)
    """
    begun = time.perf_counter()
    report = progress or (lambda stage, done, total: None)
    device = model_device(model)
    notes: list[str] = []
    loaders = {"train": train, "validation": validation, "test": test}
    first = {name: _first_inputs(name, loader, device) for name, loader in loaders.items()}
    _plain(model, first["train"])  # the first pass through a network may be slow, so it is not timed

    bayes, scaled = Laplace(model), TemperatureScaling(model)
    fitting = _Watched(train, "Fitting", report)
    tuning = _Watched(validation, "Tuning the prior", report, more=1)  # the noise, and the candidates
    with _edge_warnings_to(notes):
        fit_seconds = _timed(lambda: bayes.fit(fitting, progress=False), fitting, device)
        scaled.fit(_Watched(validation, "Temperature", report), progress=False)
        tune_seconds = _timed(lambda: _tune(bayes, tuning, first["validation"], notes), tuning, device)
        report(tuning.stage, 1, 1)

    methods: Methods = {
        "plain": lambda x: _plain(model, x),
        "temperature": scaled.predict_proba,
        "bayesian": bayes.predict_proba,
    }
    _predict(methods, [first["test"]])  # nor is the first call of a method
    testing = _Watched(test, "Test data", report)
    inside, labels, inputs, seconds = _predict_test(methods, testing, device)
    forward = seconds["plain"] / len(labels)

    made = _made_outliers(inputs, seed, notes)
    given = [(name, "given", data) for name, data in (outliers or {}).items()]
    found = _score_all_outliers(methods, inside, given + made, device, report, notes)
    ray = _ray(methods, inputs, device, report, notes) if made and inputs is not None else None
    infinity = _at_infinity(bayes, inputs, labels, report, notes) if ray is not None else []
    return Audit(
        subject=subject or type(model).__name__,
        classes=inside["plain"].shape[1],
        sizes={"train": fitting.rows, "validation": tuning.rows, "test": len(labels)},
        test={name: _score_test(probs, labels) for name, probs in inside.items()},
        outliers=found,
        ray=ray,
        changed_labels=int((inside["plain"].argmax(1) != inside["bayesian"].argmax(1)).sum()),
        prior_variance=float(bayes.prior_variance),
        temperature=float(scaled.temperature),
        cost=Cost(
            fit=fit_seconds / (forward * fitting.rows),
            tune=tune_seconds / (forward * tuning.rows),
            predict=seconds["bayesian"] / seconds["plain"],
            forward_milliseconds=1000 * forward,
        ),
        seconds=time.perf_counter() - begun,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        versions=_versions(device),
        notes=notes,
        infinity=infinity,
    )


def _tune(bayes: Laplace, validation: Iterable[Any], first: Inputs, notes: list[str]) -> None:
    """On noise too, where noise means something; never on the outliers that are scored afterwards."""
    if _scalable(first):
        bayes.tune(validation, progress=False)
    else:
        notes.append("The inputs are no floating-point tensors: the prior was tuned without noise.")
        bayes.tune(validation, objective="nll", progress=False)


# What goes in.


class _Watched:
    """A loader that counts its rows, times the wait for its data, and reports its progress.

    `more` steps of the stage come after the loader.
    """

    def __init__(self, loader: Iterable[Any], stage: str, report: Progress, more: int = 0) -> None:
        self.loader, self.stage, self.report, self.more = loader, stage, report, more
        self.rows, self.waiting = 0, 0.0

    def __iter__(self) -> Iterator[Any]:
        self.rows, self.waiting = 0, 0.0
        total = len(self.loader) + self.more if isinstance(self.loader, Sized) else None
        asked = time.perf_counter()
        for done, batch in enumerate(self.loader):
            self.waiting += time.perf_counter() - asked
            self.report(self.stage, done, total)
            yield batch
            self.rows += _rows(batch)
            self.report(self.stage, done + 1, total)
            asked = time.perf_counter()


def _rows(batch: Any) -> int:
    if isinstance(batch, Mapping):
        return _rows(next(value for value in batch.values() if isinstance(value, Tensor)))
    return len(batch) if isinstance(batch, Tensor) else _rows(batch[0])


def _scalable(x: Inputs) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _first_inputs(name: str, loader: Iterable[Any], device: torch.device) -> Inputs:
    """The inputs of the first batch, so that a loader that will not do is found before any work is done."""
    if isinstance(loader, Iterator):
        raise DataError(
            f"{name!r} is a {type(loader).__name__}, which can be read only once: "
            "give a DataLoader, or a list of batches"
        )
    try:
        return next(batches(check_loader(loader), device))[0]
    except DataError as error:
        raise DataError(f"{name!r}: {error}") from error


def _made_outliers(inputs: Tensor | None, seed: int, notes: list[str]) -> list[tuple[str, str, Any]]:
    """Noise, far-away noise and far-away test inputs; nothing, and a note, where that means nothing."""
    if inputs is None:
        notes.append("The inputs are no floating-point tensors: noise and far-away inputs were skipped.")
        return []
    # Away from the seeds that `tune` may use for its own noise: nothing is scored on what it was tuned on.
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    try:
        noise = uniform_noise(inputs, MOST_INPUTS, generator=generator)
    except DataError as error:
        notes.append(f"Noise and far-away inputs were skipped: {error}")
        return []
    return [
        ("Uniform noise", "noise", noise),
        ("Noise × 100", "far", far_away(noise, 100)),  # the paper's δ for two classes,
        ("Noise × 2,000", "far", far_away(noise, 2000)),  # and for more
        ("Test inputs × 2,000", "far", far_away(inputs, 2000)),
    ]


# Predictions.


def _plain(model: nn.Module, x: Inputs) -> Tensor:
    """The network's own probabilities, (n, k); (n, 2) for one logit."""
    with eval_mode(model), torch.no_grad():
        output = call(model, x)
    logits = output.reshape(_rows(x), -1).to(working(output.dtype))  # (n, k)
    return likelihood_for(logits.shape[1]).log_probabilities(logits).exp()


def _predict(
    methods: Methods, inputs: Iterable[Inputs], seconds: dict[str, float] | None = None
) -> Probabilities:
    """All methods on one batch after the other: rows match between methods even if the loader shuffles."""
    parts: dict[str, list[Tensor]] = {name: [] for name in methods}
    for x in inputs:
        for name, predict in methods.items():
            begun = time.perf_counter()
            parts[name].append(predict(x).cpu())
            if seconds is not None:
                seconds[name] += time.perf_counter() - begun
    return {name: torch.cat(part) for name, part in parts.items()}


def _predict_test(
    methods: Methods, loader: Iterable[Any], device: torch.device
) -> tuple[Probabilities, Tensor, Tensor | None, dict[str, float]]:
    """Probabilities, labels (n,), the first inputs if they are such as can be scaled, seconds by method."""
    labels: list[Tensor] = []
    kept: list[Tensor] = []
    seconds = dict.fromkeys(methods, 0.0)

    def inputs() -> Iterator[Inputs]:
        for x, y in batches(loader, device):
            labels.append(y.reshape(-1).long().cpu())
            if isinstance(x, Tensor) and _scalable(x) and sum(map(len, kept)) < MOST_INPUTS:
                kept.append(x.cpu())
            yield x

    probs = _predict(methods, inputs(), seconds)
    return probs, torch.cat(labels), torch.cat(kept)[:MOST_INPUTS] if kept else None, seconds


# Scores.


def _score_test(probs: Tensor, labels: Tensor) -> TestScores:
    bins = metrics.reliability(probs, labels)
    return TestScores(
        accuracy=metrics.accuracy(probs, labels),
        confidence=metrics.mmc(probs),
        nll=metrics.nll(probs, labels),
        ece=metrics.ece(probs, labels),
        brier=metrics.brier(probs, labels),
        reliability=Reliability(bins.count.tolist(), _known(bins.confidence), _known(bins.accuracy)),
        histogram=_histogram(probs),
    )


def _score_all_outliers(
    methods: Methods,
    inside: Probabilities,
    sets: list[tuple[str, str, Any]],
    device: torch.device,
    report: Progress,
    notes: list[str],
) -> list[OutlierSet]:
    found = []
    for number, (name, kind, data) in enumerate(sets):
        report("Outliers", number, len(sets))
        chunks = torch.split(data, CHUNK) if isinstance(data, Tensor) else data
        try:
            outside = _predict(methods, items(chunks, device))
            scores = {method: _score_outliers(inside[method], outside[method]) for method in methods}
        except BitbayesError as error:
            if kind == "given":
                raise DataError(f"outliers {name!r}: {error}") from error
            notes.append(f"{name} was skipped: {error}")
            continue
        found.append(OutlierSet(name, kind, len(outside["plain"]), scores))
    report("Outliers", len(sets), len(sets))
    return found


def _score_outliers(inside: Tensor, outside: Tensor) -> OutlierScores:
    return OutlierScores(
        confidence=metrics.mmc(outside),
        auroc=metrics.auroc(inside, outside),
        fpr95=metrics.fpr95(inside, outside),
        histogram=_histogram(outside),
    )


def _ray(
    methods: Methods, inputs: Tensor, device: torch.device, report: Progress, notes: list[str]
) -> Ray | None:
    x = inputs[:MOST_ON_RAY]
    low, mean, high = ({method: list[float]() for method in METHODS} for _ in range(3))
    ray = Ray([], len(x), mean=mean, low=low, high=high)
    for number, delta in enumerate(DELTAS):
        report("Far away", number, len(DELTAS))
        try:
            probs = _predict(methods, items(torch.split(far_away(x, delta), CHUNK), device))
        except BitbayesError as error:
            notes.append(f"Far-away test inputs stop before δ = {delta:g}: {error}")
            break
        ray.delta.append(delta)
        for method in METHODS:
            confidence = probs[method].max(1).values.double()  # (n,)
            ray.mean[method].append(confidence.mean().item())
            ray.low[method].append(confidence.quantile(0.1).item())
            ray.high[method].append(confidence.quantile(0.9).item())
    report("Far away", len(DELTAS), len(DELTAS))
    return ray if ray.delta else None


def _at_infinity(
    bayes: Laplace, inputs: Tensor | None, labels: Tensor, report: Progress, notes: list[str]
) -> list[AtInfinity]:
    """For each class of the test data the limits of its first inputs; a note where there are none."""
    assert inputs is not None
    known = labels[: len(inputs)]
    rows = {label: (known == label).nonzero()[:MOST_A_CLASS, 0] for label in sorted(set(known.tolist()))}
    found = []
    for number, (label, row) in enumerate(rows.items()):
        report("At infinity", number, len(rows))
        try:
            limits = bayes.limit(inputs[row]).confidence
        except Exception as error:  # the network's own code may raise anything on values along a ray
            notes.append(f"The limits of confidence at infinity were skipped: {error}")
            return []
        found.append(AtInfinity(label, len(row), limits.mean().item(), limits.max().item()))
    report("At infinity", len(rows), len(rows))
    return found


def _histogram(probs: Tensor) -> list[int]:
    confidence = probs.max(1).values.float().clamp(max=1)  # (n,)
    return [int(count) for count in confidence.histc(HISTOGRAM_BINS, 0, 1)]


def _known(values: Tensor) -> list[float | None]:
    """NaN, an empty bin, as None: JSON has no NaN."""
    return [None if value != value else value for value in values.tolist()]


# What was run.


def _timed(work: Callable[[], Any], data: _Watched, device: torch.device) -> float:
    """Seconds that `work` takes, without those it waits for its data."""
    begun = time.perf_counter()
    work()
    if device.type == "cuda":  # its work may still be under way
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun - data.waiting


@contextmanager
def _edge_warnings_to(notes: list[str]) -> Iterator[None]:
    """The search's own warnings become notes of the report; all others are passed on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EdgeWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, EdgeWarning):
            notes.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _versions(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "bitbayes": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": name,
        "threads": str(torch.get_num_threads()),
    }
