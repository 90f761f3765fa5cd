"""The tables `acet` and `oe`: the same methods on networks trained to be unsure about outliers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from bitbayes.reproduction.paper import adversarial, ood, table2
from bitbayes.reproduction.paper.numbers import cell
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session

TITLES = {"acet": "Trained with ACET", "oe": "Trained with outlier exposure"}


def measure(objective: str, session: Session) -> dict[str, Any]:
    study = session.study(objective)
    sets = ood.natural(study) | ood.noise(study, table2.DELTA) | adversarial.attacked(study)
    return ood.measure(study, sets)


def show(objective: str, values: dict[str, Any], report: Report) -> None:
    more = [on_letters(values["scores_percent"])] if objective == "oe" else []
    remarks = [*ood.notes(values), *more]
    ood.show(values, report, partial(cell, objective), TITLES[objective], remarks)


def on_letters(sets: Iterable[str]) -> str:
    """What outlier exposure was trained on, by the name that the tables give it."""
    name = next((each for each in sets if "etters" in each), "letters")
    packed = " (of the packed sets: vowels, of another source than the test letters)" if "sub" in name else ""
    return (
        f"The outliers that the network was trained with: {name}, its training split{packed}. "
        "The noise on which methods choose goes up to 10, as in the paper's code."
    )
