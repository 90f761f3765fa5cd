"""The made-up audit of `round_numbers`, and what it is without some of its parts."""

from dataclasses import replace
from typing import Any

import pytest

from auditing.round_numbers import make_audit
from bitbayes.auditing.report import AuditReport


@pytest.fixture(scope="session")
def audit() -> AuditReport:
    return make_audit()


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
        scaled=[of(each, "accuracy", "confidence") for each in audit.scaled],
        ray=of(audit.ray, "mean", "low", "high"),
        chosen=rest(audit.chosen),
    )


@pytest.fixture
def bare(audit: AuditReport) -> AuditReport:
    """The audit of inputs that cannot be scaled, without outliers."""
    return replace(
        audit, outliers=[], groups={}, prior_curve=None, scaled=[], ray=None, infinity=[], notes=[]
    )
