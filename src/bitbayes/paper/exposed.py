"""The tables `acet` and `oe`: the same methods on networks trained to be unsure about outliers."""

from __future__ import annotations

from typing import Any

from bitbayes.paper import adversarial, ood, table2
from bitbayes.paper.report import Report
from bitbayes.paper.session import Session

TITLES = {"acet": "Trained with ACET", "oe": "Trained with outlier exposure"}


def measure(objective: str, session: Session) -> dict[str, Any]:
    study = session.study(objective)
    sets = ood.natural(study) | ood.noise(study, table2.DELTA) | adversarial.attacked(study)
    return ood.measure(study, sets)


def show(objective: str, values: dict[str, Any], report: Report) -> None:
    ood.show(values, report, objective, TITLES[objective])
