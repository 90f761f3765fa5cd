"""The rows of the audit's tables as text, for the terminal and for the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bitbayes.auditing.findings import Audit, Interval, OutlierScores, TestScores
from bitbayes.auditing.words import percent

OUTLIER_MEASURES = ("AUROC, %", "auroc"), ("FPR95, %", "fpr95"), ("confidence, %", "confidence")
ARROWS = {"better": "▲", "worse": "▼", "same": ""}


@dataclass(frozen=True)
class TableRow:
    """A label and one number per method, in the order of `Audit.methods`.

    `best` marks the best numbers. `intervals` are 95% intervals, as text. `changes` compares each number
    with that of the first column: "better", "worse" or "same". It is "" for the first column itself, and for
    numbers that are not compared.
    """

    label: str
    values: list[str]
    best: list[bool]
    intervals: list[str]
    changes: list[str]


@dataclass(frozen=True)
class TableSection:
    """Rows under one title. `better` is "higher" or "lower", or "" if that differs from row to row."""

    title: str
    better: str
    rows: list[TableRow]


def table_sections(audit: Audit) -> list[TableSection]:
    """Return the scores on the test data, as they are and scaled, and those on each set of outliers."""
    test = [audit.test[method] for method in audit.methods]
    on_test = [
        _make_row("Accuracy, %", test, "accuracy", percent, max),
        _make_row("Mean confidence, %", test, "confidence", percent, None),
        _make_row("Log loss (NLL)", test, "nll", _three_digits, min),
        _make_row("Brier score", test, "brier", _three_digits, min),
        _make_row("– calibration", test, "brier_calibration", _three_digits, min),
        _make_row("– refinement", test, "brier_refinement", _three_digits, min),
        _make_row("Calibration error (ECE), %", test, "ece", percent, min),
        _make_floor_row(test),
        _make_row("Smooth ECE, %", test, "smooth_ece", percent, min),
        _make_row("Debiased (RMSCE), %", test, "debiased_rmsce", percent, min),
        _make_row("Class-wise ECE, %", test, "classwise_ece", percent, min),
        _make_row("AURC, %", test, "aurc", two_digits, min),
        _make_row("AUGRC, %", test, "augrc", two_digits, min),
    ]
    sections = [TableSection("Test data", "", on_test)]
    if audit.scaled:
        sections.append(TableSection("Scaled test inputs", "", _make_scaled_rows(audit)))
    if audit.outliers:
        sections += [
            _make_outlier_section(audit, "AUROC on outliers, %", "higher", "auroc"),
            _make_outlier_section(audit, "FPR95 on outliers, %", "lower", "fpr95"),
            _make_outlier_section(audit, "Confidence on outliers, %", "lower", "confidence"),
        ]
    return sections


def _make_outlier_section(audit: Audit, title: str, better: str, score: str) -> TableSection:
    best = min if better == "lower" else max
    rows = [
        _make_row(outlier.name, [outlier.scores[m] for m in audit.methods], score, percent, best)
        for outlier in audit.outliers
    ]
    return TableSection(title, better, rows)


def _make_floor_row(scores: Sequence[TestScores]) -> TableRow:
    """Return the ECE of a perfectly calibrated method of the same confidences."""
    blank = [""] * len(scores)
    return TableRow(
        "– if calibrated, %",
        [percent(each.floor) for each in scores],
        [False] * len(scores),
        [_write_interval(each.floor_interval, percent) for each in scores],
        blank,
    )


def detail_rows(audit: Audit, method: str) -> list[TableRow]:
    """Return the scores of a method without a column: on the test data, then on each set of outliers."""
    detail = audit.details[method]
    test = [detail.test]
    return [
        _make_row("Accuracy, %", test, "accuracy", percent, None),
        _make_row("Mean confidence, %", test, "confidence", percent, None),
        _make_row("Log loss (NLL)", test, "nll", _three_digits, None),
        _make_row("Calibration error (ECE), %", test, "ece", percent, None),
        *(
            _make_row(f"{name}: {label}", [scores], score, percent, None)
            for name, scores in detail.outliers.items()
            for label, score in (
                ("AUROC, %", "auroc"),
                ("FPR95, %", "fpr95"),
                ("confidence, %", "confidence"),
            )
        ),
    ]


def _make_scaled_rows(audit: Audit) -> list[TableRow]:
    """Return accuracy beside confidence and refusals: neither is a merit where the network is right."""
    rows = []
    for each in audit.scaled:
        for name, numbers in (
            ("accuracy", each.accuracy),
            ("confidence", each.confidence),
            ("refused", each.refused),
        ):
            values = [percent(numbers[method]) for method in audit.methods]
            blank = [""] * len(values)
            rows.append(
                TableRow(f"× {each.delta:,g}: {name}, %", values, [False] * len(values), blank, blank)
            )
    return rows


def _make_row(
    label: str,
    scores: Sequence[TestScores | OutlierScores],
    name: str,
    write: Callable[[float], str],
    best: Callable[[Sequence[float]], float] | None,
) -> TableRow:
    numbers = [getattr(each, name) for each in scores]
    values = [write(number) for number in numbers]
    # The written numbers are compared: a difference that rounding hides does not count, and if all numbers
    # are equal, none of them is best.
    winner = None if best is None or len(set(values)) == 1 else write(best(numbers))
    return TableRow(
        label,
        values,
        best=[value == winner for value in values],
        intervals=[_write_interval(each.intervals[name], write) for each in scores],
        # The first is the base.
        changes=["", *(next(iter(each.against.values()), {}).get(name, "") for each in scores[1:])],
    )


def _write_interval(ends: Interval, write: Callable[[float], str]) -> str:
    low, high = map(write, ends)
    return low if low == high else f"{low}–{high}"


def two_digits(rate: float) -> str:
    """Write a fraction in per cent. The areas under risks are often below 0.1%."""
    return f"{100 * rate:.2f}"


def _three_digits(number: float) -> str:
    return f"{number:z.3f}"
