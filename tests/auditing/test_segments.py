"""Test inputs by class and by column: what is counted, in which order, and what is refused."""

import pytest
import torch

from auditing.round_numbers import ranking
from bitbayes.auditing.predictions import Rated
from bitbayes.auditing.segments import accuracy_interval, check_segments, score_segments
from bitbayes.errors import DataError


def test_the_worst_is_first_and_few_points_are_last() -> None:
    # 40 of "a", all right; 40 of "b", half of them right; and three of "c", all wrong.
    labels = torch.zeros(83, dtype=torch.long)
    names = ["a"] * 40 + ["b"] * 40 + ["c"] * 3
    probs = torch.tensor([[0.9, 0.1]]).repeat(83, 1)
    probs[40:60], probs[80:] = torch.tensor([0.2, 0.8]), torch.tensor([0.1, 0.9])
    scores = torch.where(torch.arange(83) < 50, 1.0, 0.0)  # the threshold of 95% is 0.525
    by = {"plain": Rated(probs, scores)}
    b, a, c = score_segments(by, labels, names, {"plain": ranking("score")}, "plain")
    assert [(each.name, each.size, each.few) for each in (b, a, c)] == [
        ("b", 40, False),
        ("a", 40, False),
        ("c", 3, True),
    ]
    assert [each.accuracy["plain"] for each in (b, a, c)] == [0.5, 1.0, 0.0]
    assert [each.refused["plain"] for each in (b, a, c)] == [0.75, 0.0, 1.0]
    assert b.confidence["plain"] == pytest.approx(0.85)
    # 1.96 standard deviations of the mean of 20 draws with p = 0.8 and 20 with p = 0.9.
    assert b.noise["plain"] == pytest.approx(1.96 * (20 * 0.16 + 20 * 0.09) ** 0.5 / 40, rel=1e-5)


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    stats = pytest.importorskip("scipy.stats")
    for right, n in ((0, 10), (7, 10), (10, 10), (480, 500)):
        expected = stats.binomtest(right, n).proportion_ci(0.95, "exact")
        assert accuracy_interval(right, n) == pytest.approx(list(expected), abs=1e-6)


def test_a_column_of_single_values_is_no_column_of_segments() -> None:
    check_segments(["a", "b"] * 500, "site")
    check_segments(["a"] * 10, "site")
    message = "the column 'age' has 300 different values for 600 inputs: give one of at most 200 groups"
    with pytest.raises(DataError, match=message):
        check_segments([str(i % 300) for i in range(600)], "age")
    with pytest.raises(DataError, match="'id' has 9 different values for 9 inputs"):
        check_segments(list("abcdefghi"), "id")
