"""Table 2: multi-class outlier detection by the paper's five methods and by ours."""

from __future__ import annotations

from bitbayes.paper import ood
from bitbayes.paper.report import Report
from bitbayes.paper.session import Session

DELTA = 2000


def run(session: Session, report: Report) -> None:
    study = session.study("plain")
    sets = ood.natural(study) | ood.noise(study, DELTA)
    scores = ood.evaluate(study, sets)
    stem, title = study.problem.name, f"Table 2: {study.problem.title}, multi-class"
    report.numbers(stem, ood.as_json(study, scores))
    rows = ood.table_rows(study, scores, sets, "table2")
    report.table(stem, title, ood.HEADER, rows, *ood.notes(study, scores))
    report.picture(stem, ood.picture(study, scores, sets, "table2"))
