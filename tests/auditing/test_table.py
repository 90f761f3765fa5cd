import io
from dataclasses import replace

from rich.console import Console

from bitbayes.auditing import TableRow, table_sections, terminal_table
from bitbayes.auditing.findings import Audit


def test_the_best_of_each_row_is_marked_as_shown(audit: Audit) -> None:
    test, confidence, auroc, fpr95 = table_sections(audit)
    assert test.rows[0] == TableRow("Accuracy, %", ["90.0", "90.0", "89.5"], [True, True, False])
    assert test.rows[1].best == [False] * 3  # no mean confidence is better than another
    assert test.rows[2] == TableRow("Calibration error (ECE), %", ["9.0", "2.0", "1.0"], [False, False, True])
    assert test.rows[3].best == [False] * 3  # all alike
    assert confidence.rows[0] == TableRow("cars", ["80.0", "70.0", "40.0"], [False, False, True])
    assert (confidence.better, auroc.better, fpr95.better) == ("lower", "higher", "lower")
    assert [row.label for row in fpr95.rows] == ["cars", "<ships>", "Uniform noise"]


def test_without_outliers_only_the_test_data_remain(audit: Audit) -> None:
    assert [section.title for section in table_sections(replace(audit, outliers=[]))] == ["Test data"]


def test_the_terminal_table_fits_eighty_columns_on_one_line_a_row(audit: Audit) -> None:
    named = replace(
        audit, subject="[bold]zoo", outliers=[replace(audit.outliers[0], name="a [b] name of thirty letters")]
    )
    console = Console(file=io.StringIO(), width=80)
    console.print(terminal_table(named))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    assert "[bold]zoo" in lines[0]
    assert any(line.split()[-3:] == ["Plain", "Temperature", "Bayesian"] for line in lines)
    rows = [line.split() for line in lines if "a [b] name of thirty letters" in line]
    assert [row[-3:] for row in rows] == [["80.0", "70.0", "40.0"], ["50.0"] * 3, ["95.0"] * 3]
    assert any("Confidence on outliers, % (lower is better)" in line for line in lines)
