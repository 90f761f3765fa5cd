"""Parts of an audit with round numbers."""

from dataclasses import replace
from typing import Any

from bitbayes.auditing.findings import (
    AUDITED_METHODS,
    HISTOGRAM_BINS,
    KEPT_SHARES,
    Example,
    OutlierGroup,
    OutlierScores,
    OutlierSet,
    Passing,
    Ranking,
    ReliabilityDiagram,
    TestScores,
)


def around(value: float) -> list[float]:
    return [value - 0.01, value + 0.01]


def scores_on_test(accuracy: float, confidence: float, ece: float, change: str = "same") -> TestScores:
    def filled(value: Any, other: Any) -> list[Any]:
        return [value] * 14 + [other]

    bins = ReliabilityDiagram(
        filled(0, 400),
        filled(None, confidence),
        filled(None, accuracy),
        filled(None, accuracy - 0.03),
        filled(None, accuracy + 0.03),
    )
    numbers = {"accuracy": accuracy, "confidence": confidence, "nll": 0.25, "ece": ece, "brier": 0.125}
    intervals = {name: around(value) for name, value in numbers.items()}
    against = dict.fromkeys(("accuracy", "nll", "brier"), "same") | {"ece": change}
    return TestScores(**numbers, reliability=bins, intervals=intervals, against_plain=against)


def outlier_scores(confidence: float, auroc: float, fpr95: float, change: str = "same") -> OutlierScores:
    numbers = {"confidence": confidence, "auroc": auroc, "fpr95": fpr95}
    intervals = {name: around(value) for name, value in numbers.items()}
    return OutlierScores(**numbers, intervals=intervals, against_plain=dict.fromkeys(numbers, change))


def outlier_set(name: str, kind: str, **scores: OutlierScores) -> OutlierSet:
    histogram = [100] + [0] * (HISTOGRAM_BINS - 1)
    # As many get through at each share as at 95 %, but all of them if all test inputs are kept.
    passing = {m: Passing(histogram, [s.fpr95] * (len(KEPT_SHARES) - 1) + [1.0]) for m, s in scores.items()}
    return OutlierSet(name, kind, 100, scores, passing)


def ranking(by: str) -> Ranking:
    places = [1 - share / 2 for share in KEPT_SHARES]
    return Ranking(by, places, 0.0, 1.0, places, [0] * (HISTOGRAM_BINS - 1) + [400])


def group(change: str, plain: OutlierScores, ours: OutlierScores, *sets: str) -> OutlierGroup:
    """The means over sets, which are the same for plain and temperature, and for bitbayes and paper."""
    ours = replace(ours, against_plain=dict.fromkeys(ours.against_plain, change))
    return OutlierGroup(list(sets), dict(zip(AUDITED_METHODS, (plain, plain, ours, ours), strict=True)))


def example(source: str, label: int | None, **changes: Any) -> Example:
    values = {
        "source": source,
        "kind": "given" if label is None else "test",
        "label": label,
        "image": "data:image/png;base64,iVBORw0KGgo=",
        "values": [],
        "size": 784,
        "predicted": dict.fromkeys(AUDITED_METHODS, 3),
        "confidence": {"plain": 0.99, "temperature": 0.9, "bitbayes": 0.25, "paper": 0.3},
        "kept_from": {"plain": 0.6, "temperature": 0.6, "bitbayes": None, "paper": 0.97},
    }
    return Example(**(values | changes))
