"""The rows of the audit's table as text, for the terminal and for the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bitbayes.auditing.findings import Audit
from bitbayes.auditing.words import percent


@dataclass(frozen=True)
class TableRow:
    """A label and one number per method, in the order of `Audit.methods`. `best` marks the best numbers."""

    label: str
    values: list[str]
    best: list[bool]


@dataclass(frozen=True)
class TableSection:
    """Rows under one title. `better` is "higher" or "lower", or "" if that differs from row to row."""

    title: str
    better: str
    rows: list[TableRow]


def table_sections(audit: Audit) -> list[TableSection]:
    """Return the scores on the test data, then the confidence, AUROC and FPR95 on each set of outliers."""
    test = [audit.test[method] for method in audit.methods]
    on_test = [
        _make_row("Accuracy, %", [s.accuracy for s in test], percent, max),
        _make_row("Mean confidence, %", [s.confidence for s in test], percent, None),
        _make_row("Calibration error (ECE), %", [s.ece for s in test], percent, min),
        _make_row("Log loss (NLL)", [s.nll for s in test], "{:z.3f}".format, min),
        _make_row("Brier score", [s.brier for s in test], "{:z.3f}".format, min),
    ]
    sections = [TableSection("Test data", "", on_test)]
    if audit.outliers:
        sections += [
            _make_outlier_section(audit, "Confidence on outliers, %", "lower", "confidence"),
            _make_outlier_section(audit, "AUROC on outliers, %", "higher", "auroc"),
            _make_outlier_section(audit, "FPR95 on outliers, %", "lower", "fpr95"),
        ]
    return sections


def _make_outlier_section(audit: Audit, title: str, better: str, score: str) -> TableSection:
    best = min if better == "lower" else max
    rows = [
        _make_row(outlier.name, [getattr(outlier.scores[m], score) for m in audit.methods], percent, best)
        for outlier in audit.outliers
    ]
    return TableSection(title, better, rows)


def _make_row(
    label: str,
    numbers: list[float],
    write: Callable[[float], str],
    best: Callable[[Sequence[float]], float] | None,
) -> TableRow:
    values = [write(number) for number in numbers]
    # The written numbers are compared: a difference that rounding hides does not count, and if all numbers
    # are equal, none of them is best.
    winner = None if best is None or len(set(values)) == 1 else write(best(numbers))
    return TableRow(label, values, [value == winner for value in values])
