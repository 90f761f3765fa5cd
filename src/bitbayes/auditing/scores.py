"""Score the audited methods on the test data, on outliers, along rays, and at infinity."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitbayes import metrics
from bitbayes.auditing import bootstrap
from bitbayes.auditing.examples import SurestOutliers
from bitbayes.auditing.findings import (
    COMPARED_ON_OUTLIERS,
    COMPARED_ON_TEST,
    KEPT_SHARES,
    USUAL_SHARE,
    ClassLimits,
    OutlierGroup,
    OutlierScores,
    OutlierSet,
    Ranking,
    RayConfidence,
    ReliabilityDiagram,
    ScaledTest,
    TestScores,
)
from bitbayes.auditing.generated import pieces, scaled
from bitbayes.auditing.predictions import Methods, Predictions, Ranked, arguments_for, predict_outliers
from bitbayes.auditing.progress import ReportProgress
from bitbayes.auditing.rankings import rank_outliers
from bitbayes.auditing.reading import OutlierInputs
from bitbayes.errors import BitbayesError, DataError
from bitbayes.laplace import Laplace
from bitbayes.model import Inputs, row_count

# Of test inputs. An image may be so much brighter and still show the same.
SCALES = (1.5, 2.0, 10.0, 2000.0)
GROUPS = 10  # of the reliability diagram
NOISE_DRAWS, NUMBERS_AT_A_TIME = 1000, 2**20  # of the labels of a calibrated method
RAY_DELTAS = torch.logspace(0, 4, 13, dtype=torch.float64).tolist()
MOST_INPUTS_ALONG_RAYS = 200  # each of them is predicted once for every δ
MOST_LIMITS_PER_CLASS = 50
MOST_LIMITS = 200
# Seeds of the bootstrap, for the test data and for the first set of outliers.
TEST_SEED, OUTLIER_SEED = 0, 1


class PredictedSet(NamedTuple):
    """A set of outliers, how every method ranks it, its examples, and the names of all its inputs."""

    name: str
    kind: str
    ranked: dict[str, Ranked]
    examples: SurestOutliers
    names: list[str | None]


def score_test(predicted: Predictions, labels: Tensor, columns: Collection[str]) -> dict[str, TestScores]:
    """Return the scores of each method from its probabilities (n, k) and the labels (n,).

    Each is compared with the other methods that have a column.
    """
    weights = bootstrap.resample(len(labels), TEST_SEED)
    alike = {method: _first_alike(predicted, method) for method in predicted}
    measured: dict[str, dict[str, float]] = {}
    draws: dict[str, dict[str, Tensor]] = {}
    for method, first in alike.items():
        if method != first:  # the energy has the plain network's probabilities
            measured[method], draws[method] = measured[first], draws[first]
            continue
        probs = predicted[method].probs
        measured[method] = _measure_test(probs, labels)
        draws[method] = bootstrap.resampled_test_scores(weights, probs, labels)
        for name in bootstrap.SHIFTED:  # before the methods are compared
            draws[method][name] = bootstrap.centred(draws[method][name], measured[method][name])
    against = bootstrap.compare_all(draws, COMPARED_ON_TEST, columns)
    scores: dict[str, TestScores] = {}
    for method, first in alike.items():
        if method != first:
            scores[method] = replace(scores[first], against=against[method])
            continue
        probs = predicted[method].probs
        floor = metrics.calibration_floor(probs)
        scores[method] = TestScores(
            **measured[method],
            floor=floor.mean,
            floor_interval=[floor.low, floor.high],
            reliability=group_by_confidence(probs, labels),
            intervals=bootstrap.intervals(draws[method]),
            against=against[method],
        )
    return scores


def group_by_confidence(probs: Tensor, labels: Tensor) -> ReliabilityDiagram:
    """Compare confidence and accuracy in groups of inputs, and with what perfect calibration would show.

    Inputs of the same confidence are in one group, so that the order of rows does not matter.
    """
    confidence, answers = probs.double().max(1)
    confidence, order = confidence.sort()
    right = (answers == labels)[order].double()
    n, generator = len(confidence), torch.Generator().manual_seed(0)
    last = torch.tensor([-(-n * i // GROUPS) - 1 for i in range(1, GROUPS + 1)])  # of each group
    found, start = ReliabilityDiagram([], [], [], [], []), 0
    for end in sorted(set(torch.searchsorted(confidence, confidence[last], right=True).tolist())):
        own = confidence[start:end]
        mean = own.mean()
        rows = max(1, NUMBERS_AT_A_TIME // len(own))
        drawn = [
            (torch.rand(min(rows, NOISE_DRAWS - i), len(own), generator=generator, dtype=torch.float64) < own)
            .double()
            .mean(1)
            for i in range(0, NOISE_DRAWS, rows)
        ]
        low, high = bootstrap.interval(mean - torch.cat(drawn))
        found.count.append(end - start)
        found.confidence.append(mean.item())
        found.accuracy.append(right[start:end].mean().item())
        found.low.append(low)
        found.high.append(high)
        start = end
    return found


def _first_alike(predicted: Predictions, method: str) -> str:
    """Return the first method with the same probabilities."""
    own = predicted[method].probs
    return next(other for other, rated in predicted.items() if torch.equal(rated.probs, own))


def _measure_test(probs: Tensor, labels: Tensor) -> dict[str, float]:
    confidence, answers = probs.max(1)
    right = answers == labels
    parts = metrics.brier_decomposition(probs, labels)
    return {
        "accuracy": metrics.accuracy(probs, labels),
        "confidence": metrics.mmc(probs),
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "brier_calibration": parts.calibration,
        "brier_refinement": parts.refinement,
        "ece": metrics.ece(probs, labels),
        "smooth_ece": metrics.smooth_ece(probs, labels),
        "debiased_rmsce": metrics.debiased_rmsce(probs, labels),
        "classwise_ece": metrics.classwise_ece(probs, labels),
        "aurc": metrics.aurc(confidence, right),
        "augrc": metrics.augrc(confidence, right),
    }


def predict_sets(
    methods: Methods,
    sets: list[tuple[str, str, OutlierInputs]],
    base: str,
    report: ReportProgress,
    notes: list[str],
) -> list[PredictedSet]:
    """Run every method on every set of outliers.

    If a method fails on a set of the user, that is an error. If it fails on a generated set, the set is
    skipped and a note says why.

    Args:
        methods: the methods by name.
        sets: the name, the kind (see `OutlierSet`) and the inputs of each set.
        base: the column that chooses the examples.
        report: called with the progress.
        notes: notes for the report are appended here.
    """
    predicted_sets = []
    for number, (name, kind, data) in enumerate(sets):
        report("Outliers", number, len(sets))
        examples = SurestOutliers(base)
        try:
            ranked = predict_outliers(methods, data.batches(), examples)
        except Exception as error:  # a loader can raise anything
            if kind == "given":
                raise DataError(f"outliers {name!r}: {error}") from error
            if not isinstance(error, BitbayesError):
                raise
            notes.append(f"{name} was skipped: {error}")
            continue
        predicted_sets.append(PredictedSet(name, kind, ranked, examples, data.names))
    report("Outliers", len(sets), len(sets))
    return predicted_sets


def score_outliers(
    on_test: Predictions, rankings: dict[str, Ranking], sets: list[PredictedSet]
) -> tuple[list[OutlierSet], dict[str, OutlierGroup], dict[str, dict[str, OutlierScores]]]:
    """Score every method on every set of outliers, and on the unfamiliar and the far sets together.

    `rankings` are those of the methods that have a column. The last result has the scores of the others, by
    method and set.
    """
    details: dict[str, dict[str, OutlierScores]] = {m: {} for m in on_test if m not in rankings}
    weights = bootstrap.resample(len(next(iter(on_test.values())).scores), TEST_SEED)
    scored: list[OutlierSet] = []
    draws: list[dict[str, dict[str, Tensor]]] = []  # of each set: by method, by score
    for number, (name, kind, ranked, *_) in enumerate(sets):
        size = len(next(iter(ranked.values())).scores)
        outlier_weights = bootstrap.resample(size, OUTLIER_SEED + number)
        draws.append(
            {
                method: bootstrap.resampled_outlier_scores(
                    weights, on_test[method].scores, outlier_weights, each.scores, each.confidence
                )
                for method, each in ranked.items()
            }
        )
        against = bootstrap.compare_all(draws[-1], COMPARED_ON_OUTLIERS, rankings)
        scores = {
            method: _outlier_scores(
                each.confidence.double().mean().item(),
                metrics.auroc(on_test[method].scores, each.scores),
                metrics.fpr95(on_test[method].scores, each.scores),
                draws[-1][method],
                against[method],
            )
            for method, each in ranked.items()
        }
        passing = {
            method: rank_outliers(ranking, ranked[method].scores) for method, ranking in rankings.items()
        }
        columns = {method: scores.pop(method) for method in rankings}
        scored.append(OutlierSet(name, kind, size, columns, passing))
        for method, each in scores.items():
            details[method][name] = each
    return scored, _score_groups(scored, draws), details


def _score_groups(
    sets: list[OutlierSet], draws: list[dict[str, dict[str, Tensor]]]
) -> dict[str, OutlierGroup]:
    """Return the means over the unfamiliar and over the far sets.

    The unfamiliar sets are the user's own outliers. If there are none, noise takes their place.
    """
    given = [number for number, each in enumerate(sets) if each.kind == "given"]
    noise = [number for number, each in enumerate(sets) if each.kind == "noise"]
    far = [number for number, each in enumerate(sets) if each.kind == "far"]
    groups = {}
    for group, members in (("unfamiliar", given or noise), ("far", far)):
        if not members:
            continue
        means = {
            method: bootstrap.mean_draws([draws[i][method] for i in members])
            for method in sets[members[0]].scores
        }

        against = bootstrap.compare_all(means, COMPARED_ON_OUTLIERS, means)

        def mean(method: str, score: str, members: list[int] = members) -> float:
            values = [float(getattr(sets[i].scores[method], score)) for i in members]
            return sum(values) / len(values)

        groups[group] = OutlierGroup(
            [sets[i].name for i in members],
            {
                method: _outlier_scores(
                    mean(method, "confidence"),
                    mean(method, "auroc"),
                    mean(method, "fpr95"),
                    means[method],
                    against[method],
                )
                for method in means
            },
        )
    return groups


def _outlier_scores(
    confidence: float,
    auroc: float,
    fpr95: float,
    draws: dict[str, Tensor],
    against: dict[str, dict[str, str]],
) -> OutlierScores:
    return OutlierScores(
        confidence=confidence,
        auroc=auroc,
        fpr95=fpr95,
        intervals=bootstrap.intervals(draws),
        against=against,
    )


def score_scaled(
    methods: Methods, inputs: Inputs, labels: Tensor, rankings: dict[str, Ranking], notes: list[str]
) -> list[ScaledTest]:
    """Measure accuracy, confidence and refusals at δ·x, where the network may well be right.

    `labels` are those of the inputs, and of more.
    """
    found, size = [], row_count(inputs)
    thresholds = {m: each.threshold[KEPT_SHARES.index(USUAL_SHARE)] for m, each in rankings.items()}
    for delta in SCALES:
        chosen: dict[str, list[Tensor]] = {method: [] for method in methods}

        def note(x: Inputs, y: Tensor | None, predicted: Predictions, chosen: Any = chosen) -> None:
            for method, rated in predicted.items():
                chosen[method].append(rated.probs.argmax(1))

        try:
            ranked = predict_outliers(methods, OutlierInputs(scaled(inputs, delta), None).batches(), note)
        except BitbayesError as error:
            notes.append(f"Scaled test inputs stop before × {delta:g}: {error}")
            break
        right = {method: torch.cat(each) == labels[:size] for method, each in chosen.items()}
        refused = {method: each.scores.double() < thresholds[method] for method, each in ranked.items()}
        found.append(
            ScaledTest(
                delta,
                size,
                {method: _share(each) for method, each in right.items()},
                {method: each.confidence.double().mean().item() for method, each in ranked.items()},
                {method: _share(each) for method, each in refused.items()},
                {method: _share(each & right[method]) for method, each in refused.items()},
            )
        )
    return found


def _share(which: Tensor) -> float:
    return which.double().mean().item()


def score_rays(
    methods: Methods, inputs: Inputs, report: ReportProgress, notes: list[str]
) -> RayConfidence | None:
    """Measure the confidence at δ·x for growing δ, until the network overflows."""
    x = pieces(inputs, MOST_INPUTS_ALONG_RAYS)[0]
    low, mean, high = ({method: list[float]() for method in methods} for _ in range(3))
    ray = RayConfidence([], row_count(x), mean=mean, low=low, high=high)
    for number, delta in enumerate(RAY_DELTAS):
        report("Far away", number, len(RAY_DELTAS))
        try:
            ranked = predict_outliers(methods, OutlierInputs(scaled(x, delta), None).batches())
        except BitbayesError as error:
            notes.append(f"Far-away test inputs stop before δ = {delta:g}: {error}")
            break
        ray.delta.append(delta)
        for method, each in ranked.items():
            confidence = each.confidence.double()  # (n,)
            ray.mean[method].append(confidence.mean().item())
            ray.low[method].append(confidence.quantile(0.1).item())
            ray.high[method].append(confidence.quantile(0.9).item())
    report("Far away", len(RAY_DELTAS), len(RAY_DELTAS))
    return ray if ray.delta else None


def score_limits(
    bayes: Laplace, inputs: Inputs, labels: Tensor, report: ReportProgress, notes: list[str]
) -> list[ClassLimits]:
    """Compute the limits of confidence, and certificates, for the first test inputs of each class.

    If the network has no limits, the list is empty and a note says why.
    """
    inputs = arguments_for(bayes.model)(inputs)
    if not isinstance(inputs, Tensor):
        notes.append("The limits of confidence at infinity were skipped: they need inputs in one tensor.")
        return []
    labels = labels[: len(inputs)]
    classes = sorted(set(labels.tolist()))
    most = max(1, min(MOST_LIMITS_PER_CLASS, MOST_LIMITS // len(classes)))
    limits_by_class = []
    for number, label in enumerate(classes):
        report("At infinity", number, len(classes))
        x = inputs[labels == label][:most]
        try:
            alpha, limits, certified, _ = bayes.certify(x)
        except Exception as error:  # the network's own code can raise anything here
            notes.append(f"The limits of confidence at infinity were skipped: {error}")
            return []
        limits_by_class.append(
            ClassLimits(
                label,
                len(x),
                mean=limits.mean().item(),
                largest=limits.max().item(),
                alpha=_finite(alpha.max()),
                certified=_finite(certified.max()),
            )
        )
    report("At infinity", len(classes), len(classes))
    return limits_by_class


def _finite(value: Tensor) -> float | None:
    return value.item() if bool(value.isfinite()) else None
