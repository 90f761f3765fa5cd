import io
from dataclasses import replace

from rich.console import Console

from bitbayes.auditing import TableRow, table_sections, terminal_table
from bitbayes.auditing.findings import Audit


def test_the_best_of_each_row_is_marked_as_shown(audit: Audit) -> None:
    test, confidence, auroc, fpr95 = table_sections(audit)
    assert test.rows[0] == TableRow(
        "Accuracy, %", ["90.0", "90.0", "89.5", "89.0"], [True, True, False, False]
    )
    assert test.rows[1].best == [False] * 4  # no mean confidence is better than another
    ece = TableRow("Calibration error (ECE), %", ["9.0", "2.0", "1.0", "20.0"], [False, False, True, False])
    assert test.rows[2] == ece
    assert test.rows[3].best == [False] * 4  # all alike
    assert confidence.rows[0] == TableRow(
        "cars", ["80.0", "70.0", "40.0", "60.0"], [False, False, True, False]
    )
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
    assert any(line.split() == ["Plain", "Temperature", "bitbayes", "objective"] for line in lines)
    rows = [line.split() for line in lines if "a [b] name of thirty letters" in line]
    assert [row[-4:] for row in rows] == [["80.0", "70.0", "40.0", "60.0"], ["50.0"] * 4, ["95.0"] * 4]
    assert any("(lower is better)" in line for line in lines)


def test_a_method_that_was_left_out_has_no_column(without_paper: Audit) -> None:
    assert {len(row.values) for section in table_sections(without_paper) for row in section.rows} == {3}
    assert len(terminal_table(without_paper).columns) == 4
