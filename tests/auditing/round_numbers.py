"""An audit with round numbers, so that a reader can check what the report says about it, and its parts."""

from dataclasses import replace
from typing import Any

from bitbayes.auditing.findings import (
    AUDITED_METHODS,
    COMPARED_ON_OUTLIERS,
    COMPARED_ON_TEST,
    FEW_POINTS,
    HISTOGRAM_BINS,
    KEPT_SHARES,
    ClassLimits,
    Cost,
    Detail,
    Example,
    OutlierGroup,
    OutlierScores,
    OutlierSet,
    Passing,
    PriorCurve,
    Promise,
    Ranking,
    RayConfidence,
    ReliabilityDiagram,
    ScaledTest,
    Segment,
    TestScores,
)
from bitbayes.auditing.report import AuditReport


def around(value: float) -> list[float]:
    return [value - 0.01, value + 0.01]


def scores_on_test(accuracy: float, confidence: float, ece: float, change: str = "same") -> TestScores:
    bins = ReliabilityDiagram(
        [200, 200],
        [confidence - 0.05, min(1.0, confidence + 0.05)],
        [accuracy - 0.05, accuracy + 0.05],
        [-0.03, -0.02],
        [0.03, 0.02],
    )
    numbers = {
        "accuracy": accuracy,
        "confidence": confidence,
        "nll": 0.25,
        "ece": ece,
        "brier": 0.125,
        "brier_calibration": 0.0625,
        "brier_refinement": 0.09375,
        "smooth_ece": ece / 2,
        "debiased_rmsce": ece / 4,
        "classwise_ece": ece / 8,
        "aurc": 0.03125,
        "augrc": 0.015625,
    }
    intervals = {name: around(value) for name, value in numbers.items()}
    against = dict.fromkeys(COMPARED_ON_TEST, "same") | {"ece": change}
    return TestScores(
        **numbers,
        floor=0.0075,
        floor_interval=[0.004, 0.012],
        reliability=bins,
        intervals=intervals,
        against=dict.fromkeys((*AUDITED_METHODS, "paper"), against),
    )


def outlier_scores(confidence: float, auroc: float, fpr95: float, change: str = "same") -> OutlierScores:
    numbers = {"confidence": confidence, "auroc": auroc, "fpr95": fpr95}
    intervals = {name: around(value) for name, value in numbers.items()}
    against = dict.fromkeys(COMPARED_ON_OUTLIERS, change)
    return OutlierScores(**numbers, intervals=intervals, against=dict.fromkeys(AUDITED_METHODS, against))


def outlier_set(name: str, kind: str, **scores: OutlierScores) -> OutlierSet:
    histogram = [100] + [0] * (HISTOGRAM_BINS - 1)
    # As many get through at each share as at 95%, but all of them if all test inputs are kept.
    passing = {m: Passing(histogram, [s.fpr95] * (len(KEPT_SHARES) - 1) + [1.0]) for m, s in scores.items()}
    return OutlierSet(name, kind, 100, scores, passing)


def ranking(by: str) -> Ranking:
    places = [1 - share / 2 for share in KEPT_SHARES]
    return Ranking(by, places, 0.0, 1.0, places, [0] * (HISTOGRAM_BINS - 1) + [400])


def group(change: str, plain: OutlierScores, ours: OutlierScores, *sets: str) -> OutlierGroup:
    """The means over sets, which are the same for all but bitbayes."""
    changes = dict.fromkeys(COMPARED_ON_OUTLIERS, change)
    ours = replace(ours, against=dict.fromkeys(ours.against, changes))
    return OutlierGroup(list(sets), dict.fromkeys(AUDITED_METHODS, plain) | {"bitbayes": ours})


def segment(name: str, size: int, accuracy: float) -> Segment:
    def by_method(value: Any) -> dict[str, Any]:
        return dict.fromkeys(AUDITED_METHODS, value)

    return Segment(
        name,
        size,
        size < FEW_POINTS,
        by_method(accuracy),
        by_method(0.9),
        by_method(around(accuracy)),
        by_method(0.04),
        by_method(0.06),
    )


def example(source: str, label: int | None, **changes: Any) -> Example:
    values = {
        "source": source,
        "kind": "given" if label is None else "test",
        "name": None if label is None else f"class {label}",
        "image": "data:image/png;base64,iVBORw0KGgo=",
        "values": [],
        "size": 784,
        "predicted": dict.fromkeys(AUDITED_METHODS, 3),
        "confidence": {"plain": 0.99, "temperature": 0.9, "energy": 0.99, "bitbayes": 0.25},
        "kept_from": {"plain": 0.6, "temperature": 0.6, "energy": 0.97, "bitbayes": None},
    }
    return Example(**(values | changes))


def make_audit() -> AuditReport:
    """An audit in which bitbayes helps."""
    line = {method: [0.9, 0.8] for method in AUDITED_METHODS}
    confident = outlier_scores(1.0, 0.02, 1.0)
    far = dict.fromkeys(AUDITED_METHODS, confident) | {"bitbayes": outlier_scores(0.25, 1.0, 0.0, "better")}
    near = {
        "plain": outlier_scores(0.8, 0.8, 0.4),
        "temperature": outlier_scores(0.7, 0.8, 0.4, "worse"),
        "energy": outlier_scores(0.8, 0.85, 0.2, "better"),
        "bitbayes": outlier_scores(0.4, 0.9, 0.1, "better"),
    }
    sets = [
        outlier_set("cars", "given", **near),
        outlier_set("<ships>", "given", **near),
        outlier_set("Uniform noise", "noise", **near),
        outlier_set("Test inputs × 2,000", "far", **far),
    ]
    paper = outlier_scores(0.6, 0.85, 0.2, "better")
    return AuditReport(
        name="zoo:animals",
        classes=4,
        class_names=[f"class {label}" for label in range(4)],
        features=[],
        base="plain",
        ours="bitbayes",
        sizes={"train": 5000, "validation": 300, "test": 400},
        errors={"validation": 30, "test": 40},
        validation_nll={"plain": 0.5, "temperature": 0.25, "energy": 0.5, "bitbayes": 0.25},
        test={
            "plain": scores_on_test(0.9, 0.99, 0.09),
            "temperature": scores_on_test(0.9, 0.91, 0.02, "better"),
            "energy": scores_on_test(0.9, 0.99, 0.09),
            "bitbayes": scores_on_test(0.895, 0.9, 0.01, "better"),
        },
        details={
            "paper": Detail(scores_on_test(0.89, 0.7, 0.2, "worse"), {each.name: paper for each in sets})
        },
        selective={m: [0.1 * share - 0.04 for share in KEPT_SHARES] for m in AUDITED_METHODS},
        promise=Promise(0.05, 0.95, 400, threshold=0.75, accepted=360, errors=6),
        by_class=[segment("class 2", 100, 0.8), segment("class 0", 290, 0.9), segment("class 3", 10, 0.5)],
        segment="site",
        by_segment=[segment("<north>", 300, 0.85), segment("south", 100, 0.95)],
        rankings={
            m: ranking({"bitbayes": "score", "energy": "energy"}.get(m, "confidence"))
            for m in AUDITED_METHODS
        },
        outliers=sets,
        groups={
            "unfamiliar": group("better", near["plain"], near["bitbayes"], "cars", "<ships>"),
            "far": group("better", far["plain"], far["bitbayes"], "Test inputs × 2,000"),
        },
        prior_curve=PriorCurve(
            ["cars", "<ships>"], [0.1, 1.0, 10.0], [0.05, 0.1, 0.4], [0.8, 0.9, 0.7], [0.4, 0.2, 0.5]
        ),
        examples=[
            example("Test data", 1),
            example("cars", None),
            example("<ships>", None, image=None, values=[0.5, -2.0], size=12),
        ],
        scaled=[
            ScaledTest(
                delta, 400, *(dict.fromkeys(AUDITED_METHODS, each) for each in (0.875, 0.5, 0.25, 0.125))
            )
            for delta in (1.5, 2000.0)
        ],
        ray=RayConfidence([1.0, 10000.0], 200, mean=line, low=line, high=line),
        infinity=[ClassLimits(label, 50, 0.625, 0.725, 30.0 + label, 0.75) for label in range(4)],
        changed_labels=3,
        chosen={
            "temperature": {"temperature": 1.75},
            "bitbayes": {
                "prior_variance": 12.5,
                "temperature": 0.625,
                "near_variance": 0.75,
                "beyond_variance": 40.0,
            },
            "paper": {"prior_variance": 2.5},
        },
        cost=Cost(2.2, 4.4, 0.5, 0.25, 1.1, 2.2, 2.0),
        seconds=12.0,
        finished="2020-02-02T02:02:02+00:00",
        seed=7,
        command="bitbayes audit zoo:animals --seed 7",
        versions={"bitbayes": "0.1.0", "torch": "2.6", "python": "3.11", "device": "cpu", "threads": "2"},
        notes=["a note of <importance>"],
    )
