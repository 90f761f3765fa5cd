"""Table 1: outliers far away, for the two classes that the network confuses most; noise × 100."""

from __future__ import annotations

from functools import partial
from typing import Any

from bitbayes.reproduction.paper import ood
from bitbayes.reproduction.paper.numbers import cell
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session

DELTA = 100


def measure(session: Session) -> dict[str, Any]:
    return ood.measure(session.binary, ood.noise(session.binary, DELTA))


def show(values: dict[str, Any], report: Report) -> None:
    ood.show(values, report, partial(cell, "table1"), "Table 1, binary", ood.notes(values))
