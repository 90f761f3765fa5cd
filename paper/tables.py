"""Tables of one measure: methods in the rows, sets in the columns, the best of each column in bold."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from paper.report import markdown_table


@dataclass(frozen=True)
class Column:
    """A column of a table.

    title: its header.
    values: of each row by its title, one number for each training; a row without numbers has a dash.
    digits: after the point.
    best: what picks the best mean, `min` or `max`; None if no number is better than another.
    """

    title: str
    values: dict[str, list[float]]
    digits: int = 1
    best: str | None = None


def measure_table(rows: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """Return the lines of a Markdown table. Deviations are small, and equal bests are all in bold.

    >>> table = measure_table(["a", "b"], [Column("AUROC", {"a": [90.0, 92.0], "b": [90.0]}, 1, "max")])
    >>> print(*table, sep="\\n")
    | Method | AUROC |
    | --- | --: |
    | a | **91.0** <small>± 1.4</small> |
    | b | 90.0 |
    """
    cells = [_cells(rows, column) for column in columns]
    header = ["Method", *(column.title for column in columns)]
    body = [[row, *(column[number] for column in cells)] for number, row in enumerate(rows)]
    lines = markdown_table(header, body)
    lines[1] = f"| --- |{' --: |' * len(columns)}"
    return lines


def _cells(rows: Sequence[str], column: Column) -> list[str]:
    means = {
        row: f"{statistics.fmean(column.values[row]):.{column.digits}f}"
        for row in rows
        if column.values.get(row)
    }
    best = None
    if column.best is not None and len(means) > 1:
        best = {"min": min, "max": max}[column.best](means.values(), key=float)
    cells = []
    for row in rows:
        if row not in means:
            cells.append("–")
            continue
        cell = f"**{means[row]}**" if means[row] == best else means[row]
        if len(column.values[row]) > 1:
            cell += f" <small>± {statistics.stdev(column.values[row]):.{column.digits}f}</small>"
        cells.append(cell)
    return cells
