"""An audit with round numbers, so that a reader can check what the report says about it."""

from dataclasses import replace
from typing import Any

import pytest

from auditing.round_numbers import example, group, outlier_scores, outlier_set, ranking, scores_on_test
from bitbayes.auditing.findings import AUDITED_METHODS, ClassLimits, Cost, PriorCurve, RayConfidence
from bitbayes.auditing.report import AuditReport


@pytest.fixture(scope="session")
def audit() -> AuditReport:
    line = {method: [0.9, 0.8] for method in AUDITED_METHODS}
    far = dict(
        zip(
            AUDITED_METHODS,
            (
                outlier_scores(1.0, 0.02, 1.0),
                outlier_scores(1.0, 0.02, 1.0),
                outlier_scores(0.25, 1.0, 0.0, "better"),
                outlier_scores(0.7, 0.9, 0.4, "better"),
            ),
            strict=True,
        )
    )
    near = {
        "plain": outlier_scores(0.8, 0.8, 0.4),
        "temperature": outlier_scores(0.7, 0.8, 0.4, "worse"),
        "bitbayes": outlier_scores(0.4, 0.9, 0.1, "better"),
        "paper": outlier_scores(0.6, 0.85, 0.2, "better"),
    }
    return AuditReport(
        subject="zoo:animals",
        classes=4,
        sizes={"train": 5000, "validation": 300, "test": 400},
        test={
            "plain": scores_on_test(0.9, 0.99, 0.09),
            "temperature": scores_on_test(0.9, 0.91, 0.02, "better"),
            "bitbayes": scores_on_test(0.895, 0.9, 0.01, "better"),
            "paper": scores_on_test(0.89, 0.7, 0.2, "worse"),
        },
        rankings={
            m: ranking("score" if m in ("bitbayes", "paper") else "confidence") for m in AUDITED_METHODS
        },
        outliers=[
            outlier_set("cars", "given", **near),
            outlier_set("<ships>", "given", **near),
            outlier_set("Uniform noise", "noise", **near),
            outlier_set("Test inputs × 2,000", "far", **far),
        ],
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
        ray=RayConfidence([1.0, 10000.0], 200, mean=line, low=line, high=line),
        infinity=[ClassLimits(label, 50, 0.625, 0.725, 30.0 + label, 0.75) for label in range(4)],
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
        cost=Cost(2.0, 2.2, 4.4, 0.5, 0.25, 1.1, 2.2, 2.0),
        seconds=12.0,
        finished="2020-02-02T02:02:02+00:00",
        seed=7,
        command="bitbayes audit zoo:animals --seed 7",
        versions={"bitbayes": "0.1.0", "torch": "2.6", "python": "3.11", "device": "cpu", "threads": "2"},
        notes=["a note of <importance>"],
    )


@pytest.fixture
def without_paper(audit: AuditReport) -> AuditReport:
    """The audit of inputs for which noise means nothing."""

    def rest(values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name != "paper"}

    def of(part: Any, *names: str) -> Any:
        return replace(part, **{name: rest(getattr(part, name)) for name in names})

    return replace(
        audit,
        test=rest(audit.test),
        rankings=rest(audit.rankings),
        outliers=[of(each, "scores", "passing") for each in audit.outliers],
        groups={name: of(each, "scores") for name, each in audit.groups.items()},
        examples=[of(each, "predicted", "confidence", "kept_from") for each in audit.examples],
        ray=of(audit.ray, "mean", "low", "high"),
        chosen=rest(audit.chosen),
    )


@pytest.fixture
def bare(audit: AuditReport) -> AuditReport:
    """The audit of inputs that cannot be scaled, without outliers."""
    return replace(audit, outliers=[], groups={}, prior_curve=None, ray=None, infinity=[], notes=[])
