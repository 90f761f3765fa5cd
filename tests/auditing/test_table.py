import io
from dataclasses import replace

from rich.console import Console

from bitbayes.auditing import TableRow, table_sections, terminal_table, write_conclusion
from bitbayes.auditing.findings import Audit
from bitbayes.auditing.table import detail_rows


def printed(audit: Audit) -> list[str]:
    """The lines of the table in a pipe."""
    file = io.StringIO()
    Console(file=file, width=80).print(terminal_table(audit))
    return file.getvalue().splitlines()


def test_the_best_of_each_row_is_marked_as_shown(audit: Audit) -> None:
    test, scaled, auroc, fpr95, confidence = table_sections(audit)
    assert test.rows[0] == TableRow(
        "Accuracy, %",
        ["90.0", "90.0", "90.0", "89.5"],
        [True, True, True, False],
        ["89.0–91.0", "89.0–91.0", "89.0–91.0", "88.5–90.5"],
        ["", "same", "same", "same"],
    )
    assert test.rows[1].best == [False] * 4  # no mean confidence is better than another
    assert test.rows[1].changes == [""] * 4
    rows = {row.label: row for row in test.rows}
    ece = rows["Calibration error (ECE), %"]
    assert ece.values == ["9.0", "2.0", "9.0", "1.0"]
    assert ece.best == [False, False, False, True]
    assert ece.changes == ["", "better", "same", "better"]
    assert rows["– if calibrated, %"].values == ["0.8"] * 4
    assert rows["– if calibrated, %"].intervals == ["0.4–1.2"] * 4
    assert rows["Log loss (NLL)"].best == [False] * 4  # all alike
    assert rows["AUGRC, %"].values == ["1.56"] * 4
    assert rows["– refinement"].values == ["0.094"] * 4
    accuracy, share = scaled.rows[:2]
    assert accuracy == TableRow("× 1.5: accuracy, %", ["87.5"] * 4, [False] * 4, [""] * 4, [""] * 4)
    assert (share.label, share.values) == ("× 1.5: confidence, %", ["50.0"] * 4)
    assert auroc.rows[0].values == ["80.0", "80.0", "85.0", "90.0"]
    assert auroc.rows[0].changes == ["", "worse", "better", "better"]
    assert (auroc.better, fpr95.better, confidence.better) == ("higher", "lower", "lower")
    assert [row.label for row in fpr95.rows] == ["cars", "<ships>", "Uniform noise", "Test inputs × 2,000"]


def test_an_interval_without_width_is_one_number(audit: Audit) -> None:
    test = {m: replace(s, intervals=s.intervals | {"ece": [0.0101, 0.0102]}) for m, s in audit.test.items()}
    assert table_sections(replace(audit, test=test))[0].rows[6].intervals == ["1.0"] * 4


def test_separation_comes_before_confidence(audit: Audit) -> None:
    titles = [section.title for section in table_sections(audit)]
    assert titles.index("AUROC on outliers, %") < titles.index("Confidence on outliers, %")


def test_without_outliers_only_the_test_data_remain(bare: Audit) -> None:
    assert [section.title for section in table_sections(bare)] == ["Test data"]


def test_the_terminal_table_fits_eighty_columns_on_one_line_a_row(audit: Audit) -> None:
    named = replace(
        audit, name="[bold]zoo", outliers=[replace(audit.outliers[0], name="a [b] name of thirty letters")]
    )
    lines = printed(named)
    assert max(map(len, lines)) <= 80
    assert "[bold]zoo" in lines[0]
    assert any(line.split() == ["Plain", "Temperature", "Energy", "bitbayes"] for line in lines)
    rows = [line.split()[-4:] for line in lines if "a [b] name of thirty letters" in line]
    assert rows == [
        ["80.0", "80.0", "85.0", "*90.0"],
        ["40.0", "40.0", "20.0", "*10.0"],
        ["80.0", "70.0", "80.0", "*40.0"],
    ]
    assert any("(lower is better)" in line for line in lines)
    assert lines[-1].strip() == "* the best of its row"


def test_numbers_with_and_without_a_mark_are_aligned(audit: Audit) -> None:
    accuracy, ece = (next(line for line in printed(audit) if name in line) for name in ("Accuracy", "ECE"))
    assert accuracy.index("89.5") + len("89.5") == ece.index("*1.0") + len("*1.0")


def test_seven_columns_with_long_names_fit_too(audit: Audit) -> None:
    names = ("an ensemble of five networks", "<[b]forest[/b]>", "laplace-torch")
    test = audit.test | dict.fromkeys(names, audit.test["temperature"])
    lines = printed(replace(audit, test=test, outliers=[], scaled=[]))
    assert max(map(len, lines)) <= 80
    (row,) = (line.split()[-7:] for line in lines if "Smooth" in line)
    assert row == ["4.5", "1.0", "4.5", "*0.5", "1.0", "1.0", "1.0"]
    assert "<[b]fo" in "".join(lines)


def test_what_has_no_column_is_in_rows_of_its_own(audit: Audit) -> None:
    rows = {row.label: row.values for row in detail_rows(audit, "paper")}
    assert rows["Calibration error (ECE), %"] == ["20.0"]
    assert rows["cars: AUROC, %"] == ["85.0"]
    assert all(len(row.values) == len(row.intervals) == 1 for row in detail_rows(audit, "paper"))


def test_the_conclusion_fits_eighty_columns(audit: Audit, bare: Audit) -> None:
    for each in (audit, bare):
        assert max(map(len, write_conclusion(each).splitlines())) <= 80
