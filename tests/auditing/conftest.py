"""An audit with round numbers, so that a reader can check what the report says about it."""

from dataclasses import replace
from typing import Any

import pytest

from bitbayes.auditing.findings import (
    AUDITED_METHODS,
    Audit,
    ClassLimits,
    Cost,
    OutlierScores,
    OutlierSet,
    RayConfidence,
    ReliabilityDiagram,
    TestScores,
)


def scores_on_test(accuracy: float, confidence: float, ece: float) -> TestScores:
    bins = ReliabilityDiagram([0] * 14 + [400], [None] * 14 + [confidence], [None] * 14 + [accuracy])
    return TestScores(accuracy, confidence, 0.25, ece, 0.125, bins, [0] * 19 + [400])


def outlier_set(name: str, kind: str, *confidences: float) -> OutlierSet:
    scores = {
        method: OutlierScores(confidence, 0.5, 0.95, [0] * 10 + [100] + [0] * 9)
        for method, confidence in zip(AUDITED_METHODS, confidences, strict=True)
    }
    return OutlierSet(name, kind, 100, scores)


@pytest.fixture(scope="session")
def audit() -> Audit:
    line = {method: [0.9, 0.8] for method in AUDITED_METHODS}
    return Audit(
        subject="zoo:animals",
        classes=4,
        sizes={"train": 5000, "validation": 300, "test": 400},
        test={
            "plain": scores_on_test(0.9, 0.99, 0.09),
            "temperature": scores_on_test(0.9, 0.91, 0.02),
            "bitbayes": scores_on_test(0.895, 0.9, 0.01),
            "paper": scores_on_test(0.89, 0.7, 0.2),
        },
        outliers=[
            outlier_set("cars", "given", 0.8, 0.7, 0.4, 0.6),
            outlier_set("<ships>", "given", 0.9, 0.7, 0.5, 0.6),
            outlier_set("Uniform noise", "noise", 1.0, 1.0, 0.3, 0.35),
        ],
        ray=RayConfidence([1.0, 10000.0], 200, mean=line, low=line, high=line),
        changed_labels=3,
        chosen={
            "temperature": {"temperature": 1.75},
            "bitbayes": {
                "prior_variance": 12.5,
                "temperature": 0.625,
                "residual_variance": 40.0,
                "residual_threshold": 0.75,
            },
            "paper": {"prior_variance": 2.5},
        },
        cost=Cost(1.1, 2.2, 1.3, 0.35),
        seconds=12.0,
        finished="2020-02-02T02:02:02+00:00",
        seed=7,
        versions={"bitbayes": "0.1.0", "torch": "2.6", "python": "3.11", "device": "cpu", "threads": "2"},
        notes=["a note of <importance>"],
        infinity=[ClassLimits(label, 50, 0.625, 0.725) for label in range(4)],
    )


@pytest.fixture
def worse(audit: Audit) -> Audit:
    """An audit in which bitbayes is worse: less sure of test inputs and more sure of cars."""
    return replace(
        audit,
        test={
            **audit.test,
            "plain": scores_on_test(0.9, 0.9, 0.01),
            "bitbayes": scores_on_test(0.8, 0.5, 0.3),
        },
        outliers=[outlier_set("cars", "given", 0.5, 0.5, 0.7, 0.7)],
        changed_labels=0,
    )


@pytest.fixture
def without_paper(audit: Audit) -> Audit:
    """The audit of inputs for which noise means nothing."""

    def rest(values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name != "paper"}

    assert audit.ray is not None
    parts = {name: rest(getattr(audit.ray, name)) for name in ("mean", "low", "high")}
    return replace(
        audit,
        test=rest(audit.test),
        outliers=[replace(each, scores=rest(each.scores)) for each in audit.outliers],
        ray=replace(audit.ray, **parts),
        chosen=rest(audit.chosen),
    )
