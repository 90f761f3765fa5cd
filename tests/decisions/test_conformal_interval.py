"""Intervals with a guaranteed coverage: against loops, and their coverage whatever the noise."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

import bitbayes as bb
import reference
from bitbayes.decisions.conformal import check_coverage
from bitbayes.errors import ArgumentError, DataError, ModelError


def regression(outputs=1, likelihood="gaussian", dtype=torch.float64):
    torch.manual_seed(0)
    logits = 2 if likelihood == "heteroscedastic" else outputs
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, logits)).to(dtype)
    x, y = drawn(model, 60, outputs, 5)
    return bb.Laplace(model, likelihood=likelihood, prior_variance=1.0).fit([(x, y)])


@torch.no_grad()
def drawn(model, n, outputs, seed):
    """Targets with a noise that is far from Gaussian."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64, generator=generator).to(model[0].weight.dtype)
    noise = torch.rand(n, outputs, generator=generator, dtype=torch.float64).log().neg() - 1
    return x, model(x)[:, :outputs] + noise.to(x) * (1 + x[:, :1].abs())


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_intervals_are_those_of_a_loop(outputs, coverage, likelihood):
    outputs = 1 if likelihood == "heteroscedastic" else outputs
    bayes = regression(outputs, likelihood)
    x, y = drawn(bayes.model, 75, outputs, 1)
    new, _ = drawn(bayes.model, 20, outputs, 2)
    interval = bayes.conformal_interval(reference.loader(x, y, 20), coverage)
    seen, predicted = bayes.predict(x), bayes.predict(new)
    rank = math.ceil((75 + 1) * check_coverage(coverage)) - 1
    found = interval(new)
    assert found.shape == (20, outputs, 2) and interval.quantile.shape == (outputs,)
    for each in range(outputs):
        scores = sorted(
            abs(float(y[i, each] - seen.mean[i, each])) / float(seen.deviation[i, each]) for i in range(75)
        )
        half = scores[rank] * predicted.deviation[:, each]
        expected = torch.stack([predicted.mean[:, each] - half, predicted.mean[:, each] + half], 1)
        torch.testing.assert_close(found[:, each], expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(interval([new[:7], new[7:]]), found, rtol=1e-10, atol=1e-10)
    assert torch.equal(interval.of(predicted.mean, predicted.deviation), found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coverage_follows_the_beta_binomial_law(dtype):
    """Of m new targets, BetaBinomial(m, n + 1 − j, j) are inside, however the noise is distributed."""
    bayes = regression(dtype=dtype)
    n, m, j, draws = 49, 300, 5, 40
    law, total = stats.betabinom(m, n + 1 - j, j), 0
    for draw in range(draws):
        x, y = drawn(bayes.model, n + m, 1, 100 + draw)
        found = bayes.conformal_interval([(x[:n], y[:n])])(x[n:])
        inside = int(((found[..., 0] <= y[n:]) & (y[n:] <= found[..., 1])).sum())
        assert law.ppf(1e-6) <= inside <= law.isf(1e-6)
        total += inside
    assert abs(total / draws - m * (n + 1 - j) / (n + 1)) < 4 * math.sqrt(law.var() / draws)


def test_intervals_grow_away_from_the_data_and_stay_numbers():
    bayes = regression(dtype=torch.float32)
    x, y = drawn(bayes.model, 60, 1, 1)
    val = drawn(bayes.model, 200, 1, 3)
    bayes = bb.Laplace(bayes.model, likelihood="gaussian").fit([(x, y)]).tune([val])
    interval = bayes.conformal_interval([drawn(bayes.model, 100, 1, 4)])
    widths = [(interval(factor * x)[..., 1] - interval(factor * x)[..., 0]).min() for factor in (1, 100)]
    assert widths[1] > 10 * widths[0]
    assert not interval(1e30 * x).isnan().any()


def test_what_is_wrong_is_named():
    bayes = regression()
    x, y = drawn(bayes.model, 60, 1, 1)
    with pytest.raises(DataError, match=r"coverage=0.9 takes 9 .* there are 8: give 1 more"):
        bayes.conformal_interval([(x[:8], y[:8])])
    with pytest.raises(ArgumentError, match="coverage=90"):
        bayes.conformal_interval([(x, y)], 90)
    bad = y.clone()
    bad[4] = math.nan
    with pytest.raises(DataError, match=r"batch 0: the labels are .*finite real numbers"):
        bayes.conformal_interval([(x, bad)])
    with pytest.raises(DataError, match="batch 0 holds NaN"):
        bayes.conformal_interval([(x * math.nan, y)])
    with pytest.raises(DataError, match="expected a loader"):
        bayes.conformal_interval(x)
    classes = bb.Laplace(nn.Linear(3, 2), prior_variance=1.0).fit([(x.float(), torch.arange(60) % 2)])
    with pytest.raises(ArgumentError, match="predicts classes, which have no intervals: use `sets`"):
        classes.conformal_interval([(x.float(), torch.arange(60) % 2)])


def test_intervals_keep_the_settings_that_they_were_calibrated_with():
    bayes = regression()
    x, y = drawn(bayes.model, 60, 1, 1)
    interval = bayes.conformal_interval([(x, y)])
    before = interval(x)
    bayes.noise_variance = 100.0
    assert torch.equal(interval(x), before)
    assert repr(interval).startswith("ConformalInterval(coverage=0.9, quantile=tensor(")
    with torch.no_grad():
        bayes.model[2].weight.mul_(2)
    with pytest.raises(ModelError, match="changed"):
        interval(x)
