"""Table 1 with the paper's own pair of classes, where our network confuses another pair more."""

from functools import partial
from typing import Any

from paper.experiments import ood
from paper.numbers import paper_scores
from paper.report import Report
from paper.session import Session


def measure(session: Session) -> dict[str, Any]:
    pair = session.problem.paper_pair
    assert pair is not None
    study = session.pair_study(*pair)
    return ood.measure(study, ood.noise_set(study, ood.BINARY_NOISE_SCALE))


def show(values: dict[str, Any], report: Report) -> None:
    ood.show(values, report, partial(paper_scores, "table1"), "Table 1, the paper's pair")
