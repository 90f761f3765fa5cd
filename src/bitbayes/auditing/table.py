"""The rows of the audit's table, in words: the same for the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bitbayes.auditing.findings import METHODS, Audit
from bitbayes.auditing.words import percent


@dataclass(frozen=True)
class Row:
    """A label, a number for each method in the order of `METHODS`, and which of the numbers are best."""

    label: str
    values: list[str]
    best: list[bool]


@dataclass(frozen=True)
class Section:
    """Rows that measure the same; `better`: "higher", "lower", or "" where it depends."""

    title: str
    better: str
    rows: list[Row]


def sections(audit: Audit) -> list[Section]:
    """Scores on the test data, then mean confidence, AUROC and FPR95 on each set of outliers."""
    test = [audit.test[method] for method in METHODS]
    on_test = [
        _row("Accuracy, %", [s.accuracy for s in test], percent, max),
        _row("Mean confidence, %", [s.confidence for s in test], percent, None),
        _row("Calibration error (ECE), %", [s.ece for s in test], percent, min),
        _row("Log loss (NLL)", [s.nll for s in test], "{:z.3f}".format, min),
        _row("Brier score", [s.brier for s in test], "{:z.3f}".format, min),
    ]
    parts = [Section("Test data", "", on_test)]
    if audit.outliers:
        parts += [
            _outlier_section(audit, "Confidence on outliers, %", "lower", "confidence", min),
            _outlier_section(audit, "AUROC on outliers, %", "higher", "auroc", max),
            _outlier_section(audit, "FPR95 on outliers, %", "lower", "fpr95", min),
        ]
    return parts


def _outlier_section(
    audit: Audit, title: str, better: str, score: str, best: Callable[[Sequence[float]], float]
) -> Section:
    rows = [
        _row(outlier.name, [getattr(outlier.scores[m], score) for m in METHODS], percent, best)
        for outlier in audit.outliers
    ]
    return Section(title, better, rows)


def _row(
    label: str,
    numbers: list[float],
    show: Callable[[float], str],
    best: Callable[[Sequence[float]], float] | None,
) -> Row:
    values = [show(number) for number in numbers]
    # As shown: a difference that rounding hides is none, and where all are equal none is best.
    winner = None if best is None or len(set(values)) == 1 else show(best(numbers))
    return Row(label, values, [value == winner for value in values])
