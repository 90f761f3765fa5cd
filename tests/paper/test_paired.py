"""Paired tests, against scipy and by hand."""

import math

import pytest
from scipy import stats

from paper.paired import compare, compare_sets, holm

DIFFERENCES = [0.3, 0.1, 0.4, 0.1, 0.5]


def test_without_shared_rows_it_is_the_paired_t_test():
    found, expected = compare(DIFFERENCES, 0.0), stats.ttest_1samp(DIFFERENCES, 0.0)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-12)
    assert found.mean - found.margin == pytest.approx(interval.low, rel=1e-9)
    assert found.mean + found.margin == pytest.approx(interval.high, rel=1e-9)


def test_shared_rows_make_the_interval_wider():
    plain, found = compare(DIFFERENCES, 0.0), compare(DIFFERENCES, 0.6)
    assert found.mean == plain.mean and found.p > plain.p
    assert found.margin == pytest.approx(plain.margin * math.sqrt((0.2 + 0.6) / 0.2), rel=1e-12)


@pytest.mark.parametrize("each, p", [(0.0, 1.0), (0.5, 0.0)])
def test_differences_without_spread(each, p):
    assert compare([each] * 3, 0.6) == (each, 0.0, p)


def test_holm_by_hand():
    assert holm([0.5, 0.01, 0.02, 0.9]) == pytest.approx([1.0, 0.04, 0.06, 1.0])
    assert holm([0.04, 0.04]) == pytest.approx([0.08, 0.08])
    assert holm([]) == []


def test_sets_without_any_difference():
    assert compare_sets([0.0, 0.0, 0.0]) == 1.0
    assert compare_sets([0.1 * (place + 1) for place in range(10)]) == pytest.approx(2 / 2**10)
