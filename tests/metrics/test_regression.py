"""Measures of predicted values against scipy and integrals."""

import pytest
import torch
from scipy import integrate, stats

from bitbayes import metrics
from bitbayes.errors import ArgumentError
from bitbayes.regression import Prediction


def values(n=50, k=2):
    mean, deviation = torch.randn(n, k).double(), 0.5 + torch.rand(n, k).double()
    return mean, deviation, mean + deviation * torch.randn(n, k).double()


def test_measures_of_values_are_those_of_scipy_and_of_integrals():
    mean, deviation, targets = values()
    assert metrics.rmse(mean, targets) == pytest.approx(float(((mean - targets) ** 2).mean() ** 0.5))
    expected = -stats.norm.logpdf(targets, mean, deviation).mean()
    assert metrics.gaussian_nll(mean, deviation, targets) == pytest.approx(expected, rel=1e-12)
    found, one = (
        metrics.crps(mean[:1, :1], deviation[:1, :1], targets[:1, :1]),
        (float(each[0, 0]) for each in (mean, deviation, targets)),
    )
    m, s, y = one
    # CRPS = ∫ (F(t) − [t ≥ y])² dt
    below = integrate.quad(lambda t: stats.norm.cdf(t, m, s) ** 2, m - 40 * s, y)[0]
    above = integrate.quad(lambda t: stats.norm.sf(t, m, s) ** 2, y, m + 40 * s)[0]
    assert found == pytest.approx(below + above, rel=1e-7)


def test_coverage_and_quantiles_of_values_are_shares():
    mean, deviation, targets = values(4000, 1)
    interval = Prediction(mean, deviation.square(), torch.zeros_like(mean)).interval(0.8)
    share = float(((interval[..., 0] <= targets) & (targets <= interval[..., 1])).double().mean())
    assert metrics.interval_coverage(interval, targets) == share == pytest.approx(0.8, abs=0.035)
    levels = [i / 20 for i in range(1, 20)]
    below = [float((targets.numpy() <= stats.norm.ppf(q, mean, deviation)).mean()) - q for q in levels]
    expected = sum(map(abs, below)) / 19
    assert metrics.quantile_error(mean, deviation, targets) == pytest.approx(expected, abs=1e-12)
    assert expected < 0.04 < metrics.quantile_error(mean, 3 * deviation, targets)


def test_values_that_do_not_belong_together_are_refused():
    mean, deviation, targets = values()
    for wrong in (
        (mean[:1], deviation, targets),
        (mean, deviation[:, 0], targets),
        (mean, -deviation, targets),
    ):
        with pytest.raises(ArgumentError):
            metrics.crps(*wrong)
