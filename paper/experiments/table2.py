"""Table 2: multi-class outlier detection by the paper's five methods and by ours."""

from functools import partial
from typing import Any

from paper.experiments import ood
from paper.numbers import paper_scores
from paper.report import Report
from paper.session import Session


def measure(session: Session) -> dict[str, Any]:
    study = session.study("plain")
    return ood.measure(study, ood.image_sets(study) | ood.noise_set(study, ood.MULTICLASS_NOISE_SCALE))


def show(values: dict[str, Any], report: Report) -> None:
    ood.show(values, report, partial(paper_scores, "table2"), "Table 2, multi-class")
