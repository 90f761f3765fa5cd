"""Table 1: far-away noise (× 100) against the two classes that the network confuses most."""

from functools import partial
from typing import Any

from paper.experiments import ood
from paper.numbers import paper_scores
from paper.report import Report
from paper.session import Session


def measure(session: Session) -> dict[str, Any]:
    return ood.measure(session.binary_study, ood.noise_set(session.binary_study, ood.BINARY_NOISE_SCALE))


def show(values: dict[str, Any], report: Report) -> None:
    ood.show(values, report, partial(paper_scores, "table1"), "Table 1, binary")
