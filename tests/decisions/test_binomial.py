"""Binomial tails and Hoeffding–Bentkus p-values: against scipy and plain formulas."""

import math

import pytest
from scipy import stats

from bitbayes.decisions.binomial import (
    binomial_tail,
    divergence,
    hoeffding_bentkus,
    least_points,
    upper_bound,
)


@pytest.mark.parametrize("n", [1, 7, 100, 20_000])
@pytest.mark.parametrize("risk", [0.001, 0.05, 0.5, 0.97])
def test_tails_are_those_of_scipy(n, risk):
    for errors in {0, 1, n // 50, n // 2, n - 1, n}:
        # lgamma(20,001) is 1.8e5, of which the last digit is 3e-11.
        assert binomial_tail(errors, n, risk) == pytest.approx(
            stats.binom.cdf(errors, n, risk), rel=1e-9, abs=1e-300
        )


def plain_hoeffding_bentkus(total, n, risk):
    a = min(total / n, risk)
    h = (a * math.log(a / risk) if a > 0 else 0) + (1 - a) * math.log((1 - a) / (1 - risk))
    return min(1, math.exp(-n * h), math.e * stats.binom.cdf(math.ceil(total), n, risk))


@pytest.mark.parametrize("n, total", [(10, 0), (10, 0.7), (200, 3.25), (200, 9.0), (200, 60.5), (5, 5.0)])
@pytest.mark.parametrize("risk", [0.01, 0.1, 0.6])
def test_hoeffding_bentkus_is_the_plain_formula(n, total, risk):
    assert hoeffding_bentkus(total, n, risk) == pytest.approx(
        plain_hoeffding_bentkus(total, n, risk), rel=1e-9
    )


def test_each_of_its_two_parts_is_sometimes_the_smaller():
    """Hoeffding's for no losses and in between two numbers, Bentkus' for many."""
    pairs = [(each, 200, 0.1) for each in (0.0, 3.2, 8.0)]
    bentkus = [math.e * stats.binom.cdf(math.ceil(total), n, risk) for total, n, risk in pairs]
    smaller = [hoeffding_bentkus(*pair) < 0.999 * part for pair, part in zip(pairs, bentkus, strict=True)]
    assert smaller == [True, True, False]


@pytest.mark.parametrize("risk", [0.01, 0.02, 0.05, 0.1, 0.5])
@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.2])
def test_the_least_number_of_points(risk, alpha):
    n = least_points(risk, alpha)
    assert (1 - risk) ** n <= alpha < (1 - risk) ** (n - 1)
    assert binomial_tail(0, n, risk) <= alpha < binomial_tail(0, n - 1, risk)
    assert n == math.ceil(-math.log(alpha) / divergence(0.0, risk))
    assert least_points(1e-310, alpha) > 1e18


@pytest.mark.parametrize("errors, n", [(0, 10), (3, 50), (49, 50), (50, 50), (12, 4000)])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_the_bound_is_that_of_clopper_and_pearson(errors, n, alpha):
    expected = 1.0 if errors == n else stats.beta.ppf(1 - alpha, errors + 1, n - errors)
    assert upper_bound(binomial_tail, errors, n, alpha) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("total, n", [(0.0, 40), (2.6, 40), (30.2, 700)])
def test_the_bound_of_costs_has_the_p_value_alpha(total, n):
    bound = upper_bound(hoeffding_bentkus, total, n, 0.05)
    assert hoeffding_bentkus(total, n, bound) == pytest.approx(0.05, rel=1e-6)
