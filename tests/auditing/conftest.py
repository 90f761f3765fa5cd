"""The made-up audit of `round_numbers`, and what it is without some of its parts."""

from dataclasses import replace

import pytest

from auditing.round_numbers import make_audit
from bitbayes.auditing.report import AuditReport


@pytest.fixture(scope="session")
def audit() -> AuditReport:
    return make_audit()


@pytest.fixture
def without_paper(audit: AuditReport) -> AuditReport:
    """The audit of inputs for which noise means nothing."""
    return replace(audit, details={}, chosen={m: each for m, each in audit.chosen.items() if m != "paper"})


@pytest.fixture
def bare(audit: AuditReport) -> AuditReport:
    """The audit of inputs that cannot be scaled, without outliers."""
    return replace(
        audit, outliers=[], groups={}, prior_curve=None, scaled=[], ray=None, infinity=[], notes=[]
    )
