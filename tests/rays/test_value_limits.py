"""Limits in regression: against plain evaluation at a huge δ, and against dense matrices."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, ModelError
from bitbayes.rays import ApproximateValueLimit, ValueLimit
from bitbayes.rays.value_limits import ratio_limit
from bitbayes.toys import MLP
from ray_cases import NETWORKS, STRUCTURES, chosen_residual, network, region_of

# The intercepts of mean and variance, which vanish like 1/δ.
FAR = 1e10
CLOSE = {"rtol": 1e-6, "atol": 1e-9}


def regression(name="mlp", k=2, n=40, **options):
    """A fitted regression in float64, and inputs x; it was fitted to 2x."""
    model, x = network(name, k, n)
    y = model(2 * x).detach() + torch.randn(n, k, dtype=torch.float64)
    options = {"noise_variance": 0.3, "prior_variance": 2.0, "residual": False, **options}
    return bb.Laplace(model, likelihood="gaussian", **options).fit([(2 * x, y)]), x


def numbers(k):
    """Noise variances that differ by a factor of 10,000."""
    return tuple(0.3 * 1e4**c for c in range(k))


def at(bayes, x, delta):
    return bayes.predict(x * delta)


def agrees(bayes, x, delta=FAR):
    limit, far = bayes.value_limit(x), at(bayes, x, delta)
    torch.testing.assert_close(limit.ratio, far.mean.abs() / far.deviation, **CLOSE)
    torch.testing.assert_close(limit.mean_slope, far.mean / delta, **CLOSE)
    torch.testing.assert_close(limit.deviation_slope, far.deviation / delta, **CLOSE)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_limit_is_what_is_predicted_at_a_large_delta(name, structure):
    bayes, x = regression(name, structure=structure, noise_variance=numbers(2))
    agrees(bayes, x)
    limit = bayes.value_limit(x)
    assert type(limit) is ValueLimit and limit.ratio.shape == (40, 2)
    assert bool((limit.ratio > 0).all())


@pytest.mark.parametrize("options", [{"structure": "kron"}, {"structure": "diag"}, {"structure": "full"}])
def test_the_limit_over_all_layers_is_what_is_predicted_at_a_large_delta(options):
    bayes, x = regression(layers="all", **options)
    agrees(bayes, x[:10])


def test_the_limit_of_some_layers():
    bayes, x = regression(layers=("0", "2"))
    agrees(bayes, x[:10])


@pytest.mark.parametrize("delta", [1e8, 1e10, 1e12])
def test_the_ratio_tends_to_its_limit(delta):
    bayes, x = regression(k=1)
    limit, far = bayes.value_limit(x).ratio, at(bayes, x, delta)
    gap = (limit - far.mean.abs() / far.deviation).abs() / limit
    assert gap.max() < 1e4 / delta + 1e-9


def test_the_limit_is_that_of_dense_matrices():
    """|a|/√q₂ with a = Ws and q₂ = sᵀΣs, s the slopes of the features and Σ = σ²(ΦᵀΦ + I/σ₀²)⁻¹."""
    noise = numbers(2)
    bayes, x = regression(structure="full", noise_variance=noise)
    model = bayes.model
    wide = torch.cat(
        [nn.Sequential(*list(model)[:-1])(2 * x), torch.ones(40, 1, dtype=torch.float64)], 1
    ).detach()
    sigma = torch.linalg.inv(wide.T @ wide + torch.eye(wide.shape[1], dtype=torch.float64) / 2.0)
    slope = region_of(model, x).features.slope
    slope = torch.cat([slope, torch.zeros_like(slope[:, :1])], 1)  # the bias's 1 does not grow
    weights = torch.cat([model[-1].weight, model[-1].bias[:, None]], 1).detach()
    means = slope @ weights.T
    deviations = torch.stack([((slope @ sigma) * slope).sum(1).mul(each).sqrt() for each in noise], 1)
    limit = bayes.value_limit(x)
    torch.testing.assert_close(limit.mean_slope, means, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(limit.deviation_slope, deviations, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(limit.ratio, means.abs() / deviations, rtol=1e-9, atol=1e-12)


def test_slopes_are_in_units_of_the_given_x():
    bayes, x = regression()
    one, thousand = bayes.value_limit(x), bayes.value_limit(1000 * x)
    torch.testing.assert_close(thousand.ratio, one.ratio)
    torch.testing.assert_close(thousand.mean_slope, 1000 * one.mean_slope)
    torch.testing.assert_close(thousand.deviation_slope, 1000 * one.deviation_slope)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("near, beyond", [(0.5, 0.0), (0.0, 0.5), (0.5, 0.5)])
def test_with_the_residual_the_ratio_tends_to_0(layers, near, beyond):
    bayes, x = regression(layers=layers, residual=True)
    chosen_residual(bayes, near, beyond)
    x = x[:10]
    limit = bayes.value_limit(x)
    assert bool((limit.ratio == 0).all()) and bool((limit.deviation_slope == torch.inf).all())
    far, further = at(bayes, x, 1e8), at(bayes, x, 1e12)
    assert float((further.mean.abs() / further.deviation).max()) < 1e-2
    # d³ grows like δ³, and so the deviation like δ^1.5.
    growth = further.deviation / far.deviation
    torch.testing.assert_close(growth, torch.full_like(growth, 1e4**1.5), rtol=1e-3, atol=0)
    torch.testing.assert_close(limit.mean_slope, further.mean / 1e12, **CLOSE)


def still(**options):
    """A network whose ReLUs are all off far away, and rays on which it is constant there."""
    torch.manual_seed(0)
    model = MLP((2, 5, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(-model[0].weight.abs() - 0.1)
    x = torch.randn(30, 2, dtype=torch.float64)
    options = {"prior_variance": 1.0, "noise_variance": 0.2, **options}
    bayes = bb.Laplace(model, likelihood="gaussian", **options)
    return bayes.fit([(x, torch.randn(30, 2).double())]), torch.rand(4, 2, dtype=torch.float64) + 0.1


@pytest.mark.parametrize("layers", ["last", "all"])
def test_where_values_stop_growing_the_noise_counts(layers):
    bayes, x = still(layers=layers, residual=False)
    limit, there = bayes.value_limit(x), at(bayes, x, 1e9)
    assert bool((limit.mean_slope == 0).all()) and bool((limit.deviation_slope == 0).all())
    torch.testing.assert_close(limit.ratio, there.mean.abs() / there.deviation, **CLOSE)
    bayes.noise_variance = 20.0
    there = at(bayes, x, 1e9)
    torch.testing.assert_close(bayes.value_limit(x).ratio, there.mean.abs() / there.deviation, **CLOSE)


def test_where_values_stop_growing_but_the_residual_does_not():
    bayes, x = still(residual=True)
    chosen_residual(bayes, 0.5, 0.5)
    assert bool((bayes.value_limit(x).ratio == 0).all())
    at_rest = bayes.value_limit(torch.zeros_like(x))
    there = bayes.predict(torch.zeros_like(x))
    torch.testing.assert_close(at_rest.ratio, there.mean.abs() / there.deviation, **CLOSE)
    assert bool((at_rest.deviation_slope == 0).all())


def test_a_wider_prior_has_a_smaller_ratio():
    bayes, x = regression()
    ratios = []
    for bayes.prior_variance in (0.1, 1.0, 100.0):
        ratios.append(bayes.value_limit(x).ratio)
    assert bool((ratios[0] > ratios[1]).all() and (ratios[1] > ratios[2]).all())


def test_a_tolerance_gives_an_approximate_limit():
    bayes, x = regression()
    assert type(bayes.value_limit(x, tolerance=0.01)) is ApproximateValueLimit


def test_targets_in_other_units_have_the_same_ratio():
    bayes, x = regression(k=1)
    model = bayes.model
    scaled = nn.Sequential(*list(model)[:-1], nn.Linear(8, 1).double())
    with torch.no_grad():
        scaled[-1].weight.copy_(1000 * model[-1].weight)
        scaled[-1].bias.copy_(1000 * model[-1].bias)
    options = {"noise_variance": 0.3e6, "prior_variance": 2.0, "residual": False}
    other = bb.Laplace(scaled, likelihood="gaussian", **options).fit([(2 * x, scaled(2 * x).detach())])
    torch.testing.assert_close(other.value_limit(x).ratio, bayes.value_limit(x).ratio)


def test_noise_that_depends_on_the_input_has_no_limit_and_says_so():
    model, x = network("mlp", 2, 30)
    bayes = bb.Laplace(model, likelihood="heteroscedastic", prior_variance=1.0)
    bayes.fit([(x, torch.randn(30, 1, dtype=torch.float64))])
    for call in (bayes.value_limit, bayes.certify_values, bayes.bound):
        with pytest.raises(ArgumentError, match="changes exponentially along a ray"):
            call(x)


def test_a_model_that_is_not_affine_far_away_is_refused():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1))
    bayes = bb.Laplace(model, likelihood="gaussian", prior_variance=1.0)
    bayes.fit([(torch.randn(20, 2), torch.randn(20))])
    with pytest.raises(ModelError, match="sigmoid"):
        bayes.value_limit(torch.randn(3, 2))


def test_an_output_that_neither_moves_nor_varies_has_no_ratio():
    """As may be with some layers alone: the mean is what it is, but no slope says so."""
    bayes, x = regression()
    (ray,) = bayes._current_predictor().rays(x, find_alpha=False, tolerance=0.0)
    gaussian = ray.at(0)
    weights = torch.zeros(40, 2, dtype=torch.float64)
    nothing = replace(
        gaussian,
        scaled_mean=torch.zeros_like(gaussian.scaled_mean),
        factors=gaussian.factors._replace(weights=weights, factor=None),
    )
    assert bool(ratio_limit(ray._replace(at=lambda u: nothing)).isnan().all())
