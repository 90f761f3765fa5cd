"""Table 1: outliers far away, for the two classes that the network confuses most; noise × 100."""

from __future__ import annotations

from bitbayes.paper import ood
from bitbayes.paper.report import Report
from bitbayes.paper.session import Session

DELTA = 100


def run(session: Session, report: Report) -> None:
    study = session.binary
    sets = ood.noise(study, DELTA)
    scores = ood.evaluate(study, sets)
    stem, title = session.problem.name, f"Table 1: {study.problem.title}, binary"
    report.numbers(stem, ood.as_json(study, scores))
    rows = ood.table_rows(study, scores, sets, "table1")
    report.table(stem, title, ood.HEADER, rows, *ood.notes(study, scores))
    report.picture(stem, ood.picture(study, scores, sets, "table1"))
