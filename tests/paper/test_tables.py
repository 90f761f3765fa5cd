"""Tables of one measure."""

import statistics

from paper.tables import Column, measure_table


def test_means_and_deviations_are_those_of_statistics():
    values = {"a": [1.0, 2.0, 4.0], "b": [3.0]}
    first, second = measure_table(["a", "b"], [Column("x", values, 2)])[2:]
    mean, deviation = statistics.fmean(values["a"]), statistics.stdev(values["a"])
    assert first == f"| a | {mean:.2f} <small>± {deviation:.2f}</small> |"
    assert second == "| b | 3.00 |"


def test_the_best_as_shown_is_in_bold_and_so_are_its_equals():
    values = {"a": [1.04], "b": [1.0], "c": [2.0], "d": []}
    assert measure_table([*values], [Column("x", values, 1, "min")])[2:] == [
        "| a | **1.0** |",
        "| b | **1.0** |",
        "| c | 2.0 |",
        "| d | – |",
    ]
    assert "**2.0**" in measure_table([*values], [Column("x", values, 1, "max")])[4]


def test_a_single_row_is_no_best():
    assert measure_table(["a"], [Column("x", {"a": [1.0]}, 1, "max")])[2] == "| a | 1.0 |"
