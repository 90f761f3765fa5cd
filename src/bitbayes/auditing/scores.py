"""Score the audited methods on the test data, on outliers, along rays, and at infinity."""

from typing import Any

import torch
from torch import Tensor

from bitbayes import metrics
from bitbayes.auditing.findings import (
    ClassLimits,
    OutlierScores,
    OutlierSet,
    RayConfidence,
    ReliabilityDiagram,
    TestScores,
)
from bitbayes.auditing.predictions import Methods, Predictions, predict_outliers
from bitbayes.auditing.progress import ReportProgress
from bitbayes.errors import BitbayesError, DataError
from bitbayes.laplace import Laplace
from bitbayes.outliers import far_away

HISTOGRAM_BINS = 20
RAY_DELTAS = torch.logspace(0, 4, 13, dtype=torch.float64).tolist()
MOST_INPUTS_ALONG_RAYS = 200  # each of them is predicted once for every δ
MOST_LIMITS_PER_CLASS = 50


def score_test(probs: Tensor, labels: Tensor) -> TestScores:
    """Return the scores of one method from its probabilities (n, k) and the labels (n,)."""
    bins = metrics.reliability(probs, labels)
    return TestScores(
        accuracy=metrics.accuracy(probs, labels),
        confidence=metrics.mmc(probs),
        nll=metrics.nll(probs, labels),
        ece=metrics.ece(probs, labels),
        brier=metrics.brier(probs, labels),
        reliability=ReliabilityDiagram(
            bins.count.tolist(), _nan_to_none(bins.confidence), _nan_to_none(bins.accuracy)
        ),
        histogram=_count_confidences(probs),
    )


def score_outliers(
    methods: Methods,
    on_test: Predictions,
    sets: list[tuple[str, str, Any]],
    device: torch.device,
    report: ReportProgress,
    notes: list[str],
) -> list[OutlierSet]:
    """Score every method on every set of outliers.

    If a method fails on a set of the user, that is an error. If it fails on a generated set, the set is
    skipped and a note says why.

    Args:
        methods: the methods by name.
        on_test: the predictions of each method on the test data.
        sets: the name, the kind (see `OutlierSet`) and the inputs of each set.
        device: the model's device.
        report: called with the progress.
        notes: notes for the report are appended here.
    """
    found = []
    for number, (name, kind, data) in enumerate(sets):
        report("Outliers", number, len(sets))
        try:
            predicted = predict_outliers(methods, data, device)
            scores = {
                method: OutlierScores(
                    confidence=metrics.mmc(probs),
                    auroc=metrics.auroc(on_test[method].scores, outside),
                    fpr95=metrics.fpr95(on_test[method].scores, outside),
                    histogram=_count_confidences(probs),
                )
                for method, (probs, outside) in predicted.items()
            }
        except BitbayesError as error:
            if kind == "given":
                raise DataError(f"outliers {name!r}: {error}") from error
            notes.append(f"{name} was skipped: {error}")
            continue
        found.append(OutlierSet(name, kind, len(predicted["plain"].probs), scores))
    report("Outliers", len(sets), len(sets))
    return found


def score_rays(
    methods: Methods, inputs: Tensor, device: torch.device, report: ReportProgress, notes: list[str]
) -> RayConfidence | None:
    """Measure the confidence at δ·x for growing δ, until the network overflows."""
    x = inputs[:MOST_INPUTS_ALONG_RAYS]
    low, mean, high = ({method: list[float]() for method in methods} for _ in range(3))
    ray = RayConfidence([], len(x), mean=mean, low=low, high=high)
    for number, delta in enumerate(RAY_DELTAS):
        report("Far away", number, len(RAY_DELTAS))
        try:
            predicted = predict_outliers(methods, far_away(x, delta), device)
        except BitbayesError as error:
            notes.append(f"Far-away test inputs stop before δ = {delta:g}: {error}")
            break
        ray.delta.append(delta)
        for method, (probs, _) in predicted.items():
            confidence = probs.max(1).values.double()  # (n,)
            ray.mean[method].append(confidence.mean().item())
            ray.low[method].append(confidence.quantile(0.1).item())
            ray.high[method].append(confidence.quantile(0.9).item())
    report("Far away", len(RAY_DELTAS), len(RAY_DELTAS))
    return ray if ray.delta else None


def score_limits(
    bayes: Laplace, inputs: Tensor, labels: Tensor, report: ReportProgress, notes: list[str]
) -> list[ClassLimits]:
    """Compute the limits of confidence for the first test inputs of each class.

    If the network has no limits, the list is empty and a note says why.
    """
    labels = labels[: len(inputs)]
    classes = sorted(set(labels.tolist()))
    found = []
    for number, label in enumerate(classes):
        report("At infinity", number, len(classes))
        x = inputs[labels == label][:MOST_LIMITS_PER_CLASS]
        try:
            limits = bayes.limit(x).confidence
        except Exception as error:  # the network's own code can raise anything here
            notes.append(f"The limits of confidence at infinity were skipped: {error}")
            return []
        found.append(ClassLimits(label, len(x), limits.mean().item(), limits.max().item()))
    report("At infinity", len(classes), len(classes))
    return found


def _count_confidences(probs: Tensor) -> list[int]:
    """Return the number of confidences in each of `HISTOGRAM_BINS` equal bins from 0 to 1."""
    confidence = probs.max(1).values.float().clamp(max=1)  # (n,)
    return [int(count) for count in confidence.histc(HISTOGRAM_BINS, 0, 1)]


def _nan_to_none(values: Tensor) -> list[float | None]:
    """Replace NaN, which marks an empty bin, by None: JSON has no NaN."""
    return [None if value != value else value for value in values.tolist()]
