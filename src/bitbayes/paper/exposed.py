"""The tables `acet` and `oe`: the same methods on networks trained to be unsure about outliers."""

from __future__ import annotations

from bitbayes.paper import adversarial, ood, table2
from bitbayes.paper.report import Report
from bitbayes.paper.session import Session

TITLES = {"acet": "ACET", "oe": "outlier exposure"}


def run(objective: str, session: Session, report: Report) -> None:
    study = session.study(objective)
    sets = ood.natural(study) | ood.noise(study, table2.DELTA) | adversarial.attacked(study)
    scores = ood.evaluate(study, sets)
    stem, title = study.problem.name, f"Trained with {TITLES[objective]}: {study.problem.title}"
    report.numbers(stem, ood.as_json(study, scores))
    rows = ood.table_rows(study, scores, sets, objective)
    report.table(stem, title, ood.HEADER, rows, *ood.notes(study, scores))
    report.picture(stem, ood.picture(study, scores, sets, objective))
