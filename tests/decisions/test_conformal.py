"""The exact quantile: against loops, and the coverage that it promises."""

import math
from fractions import Fraction

import pytest
import torch
from scipy import stats

from bitbayes.decisions.conformal import (
    check_coverage,
    check_points,
    conformal_quantile,
    least_points,
)
from bitbayes.errors import ArgumentError, DataError


def by_a_loop(values, coverage):
    """The ⌊(n + 1)(1 − coverage)⌋-th smallest, in whole numbers."""
    rank = math.floor((len(values) + 1) * (1 - coverage))
    return sorted(values)[rank - 1]


def risk_by_a_loop(points, coverage):
    """The largest threshold among all conformities whose corrected mean loss is at most 1 − coverage."""
    allowed = 1 - coverage
    best = None
    for t in sorted(value for point in points for value in point):
        losses = [
            Fraction(sum(v < t for v in point), len(point)) if point else Fraction(0) for point in points
        ]
        if (sum(losses) + 1) / (len(points) + 1) <= allowed:
            best = t
    return best


@pytest.mark.parametrize("n", [19, 20, 38, 39, 40, 99, 100, 359])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_the_quantile_is_that_of_a_loop(n, coverage):
    torch.manual_seed(n)
    values = torch.randn(n)
    exact = check_coverage(coverage)
    found = conformal_quantile(values, exact)
    assert found.item() == by_a_loop(values.tolist(), exact)
    scores = sorted((-values).tolist())  # as it is usually written, of scores that grow as conformities fall
    assert -found.item() == scores[math.ceil((n + 1) * exact) - 1]


def test_ties_and_equal_conformities_lose_no_point_too_many():
    values = torch.tensor([1.0, 1.0, 1.0, 2.0, 3.0] * 20)
    found = conformal_quantile(values, Fraction(4, 5))  # the 20th smallest
    assert found == 1.0
    assert int((values < found).sum()) + 1 <= 101 / 5
    assert conformal_quantile(torch.ones(30), Fraction(9, 10)) == 1.0


@pytest.mark.parametrize("coverage", [0.7, 0.9, 0.95])
@pytest.mark.parametrize("seed", range(6))
def test_the_risk_of_points_with_several_conformities_is_that_of_a_loop(coverage, seed):
    torch.manual_seed(seed)
    points = [torch.rand(int(each)).double().tolist() for each in torch.randint(0, 5, (60,))]
    values = torch.tensor([value for point in points for value in point], dtype=torch.float64)
    weights = torch.tensor([1 / len(point) for point in points for _ in point], dtype=torch.float64)
    exact = check_coverage(coverage)
    found = conformal_quantile(values, exact, weights=weights, points=len(points))
    assert found.item() == risk_by_a_loop(points, exact)


def test_if_all_may_be_lost_the_largest_conformity_is_taken():
    """Two points of 99 have labels, and 5% may be lost: no threshold among theirs is too high."""
    found = conformal_quantile(
        torch.tensor([0.2, 0.7]), Fraction(19, 20), weights=torch.ones(2).double(), points=99
    )
    assert found == torch.tensor(0.7)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 2 / 3])
def test_the_least_number_of_points_is_where_the_rank_is_one(coverage):
    exact = check_coverage(coverage)
    n = least_points(exact)
    assert math.floor((n + 1) * (1 - exact)) >= 1 > math.floor(n * (1 - exact))
    check_points(n, exact)
    with pytest.raises(
        DataError, match=f"takes {n:,} calibration points, and there are {n - 1:,}: give 1 more"
    ):
        check_points(n - 1, exact)


@pytest.mark.parametrize("coverage", [0, 1, 1.5, -0.1, math.nan, "0.9", None, True])
def test_a_coverage_is_between_zero_and_one(coverage):
    with pytest.raises(ArgumentError, match="coverage="):
        check_coverage(coverage)


@pytest.mark.parametrize(("n", "coverage"), [(19, 0.95), (50, 0.9), (100, 0.95), (57, 0.8)])
def test_the_coverage_is_in_its_band(n, coverage):
    """One new point for each calibration set is covered with probability 1 − j/(n + 1), independently."""
    exact, draws = check_coverage(coverage), 4000
    values = torch.randn(draws, n + 1, generator=torch.Generator().manual_seed(n)).exp()
    covered = sum(bool(row[-1] >= conformal_quantile(row[:-1], exact)) for row in values)
    promised = 1 - Fraction(math.floor((n + 1) * (1 - exact)), n + 1)
    assert exact <= promised < exact + Fraction(1, n + 1)
    law = stats.binom(draws, float(promised))
    assert law.ppf(1e-4) <= covered <= law.isf(1e-4)
