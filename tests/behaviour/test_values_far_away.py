"""Bounds and certificates of |mean|/deviation in regression, against plain evaluation and dense matrices."""

import pytest
import torch

import bitbayes as bb
from bitbayes.errors import ArgumentError
from bitbayes.rays import ApproximateValueCertificate, ValueCertificate
from ray_cases import NETWORKS, chosen_residual, fine_grid, largest_ratio, network


def regression(name="mlp", k=2, n=30, **options):
    """A fitted regression in float64, and inputs x; it was fitted to 2x."""
    model, x = network(name, k, n)
    y = model(2 * x).detach() + torch.randn(n, k, dtype=torch.float64)
    options = {"noise_variance": 0.3, "prior_variance": 2.0, "residual": False, **options}
    return bb.Laplace(model, likelihood="gaussian", **options).fit([(2 * x, y)]), x


def ratio(bayes, x, delta):
    """|mean|/deviation (n, k) at δ·x, δ (n,)."""
    found = bayes.predict(x * delta.reshape(-1, *[1] * (x.dim() - 1)))
    return found.mean.abs() / found.deviation


@pytest.mark.parametrize("name", NETWORKS)
def test_no_ratio_exceeds_a_certificate_and_certificates_are_tight(name):
    bayes, x = regression(name, noise_variance=(0.3, 50.0))
    certificate, limit = bayes.certify_values(x), bayes.value_limit(x)
    assert type(certificate) is ValueCertificate and certificate.beyond is None
    torch.testing.assert_close(certificate.limit, limit.ratio)
    grid = fine_grid(certificate.alpha, 60)
    top = torch.stack([ratio(bayes, x, delta) for delta in grid]).amax(0)
    top = torch.maximum(top, limit.ratio)
    assert bool((certificate.ratio >= top).all())
    assert bool((certificate.ratio <= top * (1 + 1e-2)).all())


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("residual", [False, True])
def test_certificates_hold_over_all_layers_and_with_the_residual(layers, residual):
    bayes, x = regression(layers=layers, residual=residual)
    if residual:
        chosen_residual(bayes, 0.02, 0.02)
    x = x[:6]
    at_most = 1.5
    certificate = bayes.certify_values(x, at_most=at_most)
    grid = fine_grid(certificate.alpha * 1.0001, 40)
    top = torch.stack([ratio(bayes, x, delta) for delta in grid]).amax(0)
    assert bool((certificate.ratio >= top - 1e-9).all())
    assert bool((certificate.ratio >= certificate.limit).all())
    holds = certificate.beyond.isfinite()
    assert bool((holds == (certificate.limit < at_most)).all()) and bool(holds.any())
    for output in range(2):
        rows = holds[:, output]
        for factor in (1.0, 1.01, 1.5, 10.0, 1e3, 1e6):
            found = ratio(bayes, x[rows], factor * certificate.beyond[rows, output])[:, output]
            assert float(found.max()) <= at_most + 1e-6


def test_beyond_may_be_below_alpha_with_the_residual():
    bayes, x = regression(residual=True, noise_variance=(0.3, 50.0))
    chosen_residual(bayes, 1.0, 1.0)
    certificate = bayes.certify_values(x, at_most=1.64)
    assert bool((certificate.beyond < certificate.alpha[:, None]).any())
    for output in range(2):
        for factor in (1.0, 1.01, 1.5, 10.0, 1e3):
            found = ratio(bayes, x, factor * certificate.beyond[:, output])[:, output]
            assert float(found.max()) <= 1.64 + 1e-6
            interval = bayes.interval(x * (factor * certificate.beyond[:, output, None]))[:, output]
            assert bool((interval[:, 0] <= 0).all() and (interval[:, 1] >= 0).all())


def test_beyond_is_close_to_the_last_crossing():
    bayes, x = regression(k=1, residual=True)
    chosen_residual(bayes, 1.0, 1.0)
    x = x[:5]
    beyond = bayes.certify_values(x, at_most=1.64).beyond[:, 0]
    shares = torch.linspace(0.5, 1, 2000, dtype=torch.float64)
    above = torch.stack([ratio(bayes, x, share * beyond)[:, 0] > 1.64 for share in shares])
    for row in range(5):  # a ray that is never above has none
        if bool(above[:, row].any()):
            assert float(shares[above[:, row]].max()) > 0.9


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_the_bound_is_the_largest_ratio_of_any_features(structure):
    noise = (0.3, 50.0)
    bayes, x = regression(structure=structure, noise_variance=noise)
    bound = bayes.bound()
    assert bound.shape == (2,)
    head = bayes.model[-1]
    means = torch.cat([head.weight, head.bias[:, None]], 1).detach()
    gaussian = bayes.posterior.decomposed()[next(iter(bayes.posterior.fitted.curvature))]
    for output in range(2):
        eye = torch.eye(means.shape[1], dtype=torch.float64)
        # The covariance of the weights, from variances of sums of them: uᵀSv by polarisation.
        plain = gaussian.joint_covariance(eye, 0.5, 2)[output] * noise[output]
        largest = largest_ratio(means[output], plain)
        # `largest_ratio` returns its ratio by ascent, to about six digits.
        torch.testing.assert_close(bound[output], largest, rtol=1e-5, atol=0)
    assert bool((bayes.certify_values(x).ratio <= bound + 1e-9).all())
    assert bool((bound <= bayes.bound(form="theorem") * (1 + 1e-12)).all())
    for delta in (0.0, 1.0, 100.0):
        assert bool((ratio(bayes, x, torch.full((30,), delta).double()) <= bound).all())


@pytest.mark.parametrize("form", ["tight", "theorem"])
def test_bounds_over_all_layers_are_one_for_each_ray_and_output(form):
    bayes, x = regression(layers="all", noise_variance=4.0)
    x = torch.cat([x[:4], torch.zeros(1, 5, dtype=torch.float64)])
    bound = bayes.bound(x, form=form)
    assert bound.shape == (5, 2)
    assert bool((bayes.value_limit(x[:4]).ratio <= bound[:4] * (1 + 1e-9)).all())
    if form == "theorem":
        assert bool((bound[4] == torch.inf).all()) and bool((bayes.bound(x) <= bound).all())


def test_with_the_residual_the_bound_of_limits_is_0():
    bayes, x = regression(residual=True)
    chosen_residual(bayes, 0.5, 0.5)
    assert bool((bayes.bound(x) == 0).all()) and bayes.bound(x).shape == (2,)


def test_a_tolerance_gives_an_approximate_certificate():
    bayes, x = regression()
    assert type(bayes.certify_values(x, tolerance=0.01)) is ApproximateValueCertificate


def test_bad_requests_are_refused():
    bayes, x = regression()
    for call in (
        lambda: bayes.certify_values(x, at_most=-1.0),
        lambda: bayes.certify_values(x, tolerance=2.0),
        lambda: bayes.bound(form="loose"),
        lambda: bayes.value_limit(x.long()),
    ):
        with pytest.raises(ArgumentError):
            call()


def test_classifiers_and_regression_name_each_others_functions():
    bayes, x = regression()
    classifier = bb.Laplace(torch.nn.Linear(3, 2), prior_variance=1.0)
    classifier.fit([(torch.randn(20, 3), torch.arange(20) % 2)])
    for call, instead in ((bayes.limit, "value_limit"), (bayes.certify, "certify_values")):
        with pytest.raises(ArgumentError, match=f"'gaussian' predicts values: use `{instead}`"):
            call(x)
    for call, instead in ((classifier.value_limit, "limit"), (classifier.certify_values, "certify")):
        with pytest.raises(ArgumentError, match=f"'categorical' predicts classes: use `{instead}`"):
            call(torch.randn(4, 3))
