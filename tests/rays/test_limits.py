"""Limits, against the prediction at a large δ, and where features stop growing."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, ModelError, NotFittedError
from bitbayes.toys import MLP, digits, digits_lenet
from ray_cases import METHODS, NETWORKS, STRUCTURES, agrees, deltas, laplace, network


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("k, method", METHODS)
def test_the_limit_is_the_prediction_at_a_large_delta(structure, k, method):
    bayes, x = laplace("mlp", k, structure=structure, predictive=method, prior_variance=3.0)
    agrees(bayes, x)
    bayes.temperature = 0.3
    agrees(bayes, x)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_limit_is_the_prediction_far_away_on_every_kind_of_network(name):
    bayes, x = laplace(name, 3, structure="kron")
    agrees(bayes, x)


@given(
    name=st.sampled_from(list(NETWORKS)),
    case=st.sampled_from(METHODS),
    structure=st.sampled_from(STRUCTURES),
    prior_variance=st.floats(1e-4, 1e4),
    temperature=st.floats(0.1, 1e2),
    seed=st.integers(0, 10_000),
)
def test_the_limit_is_the_prediction_far_away_on_any_network(
    name, case, structure, prior_variance, temperature, seed
):
    k, method = case
    options = {"structure": structure, "predictive": method, "prior_variance": prior_variance}
    bayes, x = laplace(name, k, n=12, seed=seed, **options)
    bayes.temperature = temperature
    # A ray whose prediction still changes from δ = 1e9 to 2e9 is not near its limit: it is left out.
    near, far = bayes.predict_proba(1e9 * x).amax(1), bayes.predict_proba(2e9 * x).amax(1)
    settled = (near - far).abs() < 1e-6
    assert settled.float().mean() > 0.9
    agrees(bayes, x[settled])


def test_limits_of_the_shipped_lenet_in_float32_are_those_of_float64():
    images, labels = digits().test_images, digits().test_labels
    model = digits_lenet()
    bayes = bb.Laplace(model, prior_variance=10.0).fit([(images[:200], labels[:200])])
    exact = bb.Laplace(copy.deepcopy(model).double(), prior_variance=10.0)
    exact.fit([(images[:200].double(), labels[:200])])
    x = images[200:220]
    limit = bayes.limit(x)
    probs = exact.predict_proba(1e9 * x.double())
    torch.testing.assert_close(limit.confidence, probs.amax(1), rtol=0, atol=1e-5)
    assert torch.equal(limit.label, probs.argmax(1))
    agrees(exact, x.double())


def test_where_features_stop_growing_the_limit_is_their_value():
    """With negative weights and positive inputs every ReLU is off, and only the last bias is left."""
    model = MLP((2, 5, 3)).double()
    with torch.no_grad():
        model[0].weight.copy_(-model[0].weight.abs() - 0.1)
    x = torch.randn(30, 2, dtype=torch.float64)
    bayes = bb.Laplace(model).fit([(x, torch.arange(30) % 3)])
    rays = torch.rand(4, 2, dtype=torch.float64) + 0.1
    torch.testing.assert_close(bayes.limit(rays).confidence, bayes.predict_proba(1e9 * rays).amax(1))
    torch.testing.assert_close(bayes.limit(rays).confidence, bayes.predict_proba(1e3 * rays).amax(1))
    certificate = bayes.certify(rays)
    assert bool((certificate.confidence >= certificate.limit).all())
    torch.testing.assert_close(certificate.confidence, certificate.limit, rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", ["probit", "pairwise", "meanfield", "bridge"])
def test_at_the_origin_the_limit_is_the_prediction(method):
    bayes, x = laplace("mlp", 3, predictive=method)
    zero = 0 * x[:2]
    torch.testing.assert_close(bayes.limit(zero).confidence, bayes.predict_proba(zero).amax(1))


@pytest.mark.parametrize("k", [1, 3])
def test_the_limit_does_not_depend_on_the_size_of_the_features(k):
    """With one variance for all weights of the head it is that of the features' direction alone."""
    model, x = network("mlp", k, 10)
    limits = []
    for factor in (1.0, 1e-170):  # whose square is 0
        with torch.no_grad():
            model[-3].weight *= factor
            model[-3].bias *= factor
        bayes = bb.Laplace(model, structure="isotropic", residual=False).fit([(x, torch.arange(10) % 2)])
        limits.append(bayes.limit(x).confidence)
    torch.testing.assert_close(*limits, rtol=1e-10, atol=0)
    assert limits[0].min() < limits[0].max() < 1


def test_equal_logits_have_a_uniform_limit():
    """Logits with slope 0 but some variance have the limit 1/k, not 0/0."""
    for k in (1, 3):
        model = MLP((2, 5, k)).double()
        with torch.no_grad():
            model[2].weight.zero_()
            model[2].bias.zero_()
        x = torch.randn(20, 2, dtype=torch.float64)
        bayes = bb.Laplace(model).fit([(x, torch.arange(20) % max(k, 2))])
        expected = torch.full((20,), 1 / max(k, 2), dtype=torch.float64)
        torch.testing.assert_close(bayes.limit(x).confidence, expected)
        assert bool(bayes.certify(x).confidence.isfinite().all())


def test_the_limit_of_a_head_without_bias_is_the_prediction_far_away():
    model = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3, bias=False)).double()
    x = torch.randn(20, 2, dtype=torch.float64)
    agrees(bb.Laplace(model).fit([(x, torch.arange(20) % 3)]), x)


def test_batches_of_rows_and_cells_give_the_same_limits_and_certificates(monkeypatch):
    bayes, x = laplace("mlp", 3)
    whole, certificate = bayes.limit(x), bayes.certify(x)
    monkeypatch.setattr("bitbayes.rays.ray_gaussian.PAIR_NUMBERS_PER_BATCH", 9 * 7)
    monkeypatch.setattr("bitbayes.rays.certificates.RATIO_NUMBERS_PER_BATCH", 9 * 7)
    torch.testing.assert_close(bayes.limit(x), whole)
    torch.testing.assert_close(bayes.certify(x), certificate)


def test_the_plain_network_becomes_certain():
    """Hein et al. (2019): the confidence of a plain network tends to 1 on almost every ray."""
    for k in (1, 3):
        model, x = network("mlp", k, 1000)
        with torch.no_grad():
            logits = model(1e9 * x)
        p = logits.abs().sigmoid()[:, 0] if k == 1 else logits.softmax(1).amax(1)
        assert (p > 1 - 1e-9).double().mean() > 0.95


def test_the_bayesian_network_does_not_become_certain():
    for k in (1, 3):
        bayes, x = laplace("mlp", k, n=200, prior_variance=100.0)
        assert bayes.limit(x).confidence.mean() < 0.95


@pytest.mark.parametrize("k", [1, 2])
def test_without_biases_confidence_never_exceeds_its_limit(k):
    """The theorem's second statement: the confidence grows with δ towards its limit."""
    torch.manual_seed(0)
    model = MLP((3, 10, 10, k), bias=False, last_bias=False).double()
    x = torch.randn(50, 3, dtype=torch.float64)
    bayes = bb.Laplace(model).fit([(x, torch.arange(50) % 2)])
    limit, certificate = bayes.limit(x).confidence, bayes.certify(x)
    assert bool((certificate.alpha == 0).all())
    torch.testing.assert_close(certificate.confidence, limit, rtol=0, atol=1e-8)
    before = torch.full_like(limit, 0.5)
    for delta in deltas(certificate.alpha, 40):
        confidence = bayes.predict_proba(x * delta[:, None]).amax(1)
        assert bool((confidence >= before - 1e-12).all())
        assert bool((confidence <= limit + 1e-12).all())
        before = confidence


def test_predictives_without_a_closed_form_raise():
    bayes, x = laplace("mlp", 3, predictive="mc")
    for call in (bayes.limit, bayes.certify, bayes.bound):
        with pytest.raises(ArgumentError, match="'mc'"):
            call(x)
    bayes, x = laplace("mlp", 3, predictive="bridge")
    for call in (bayes.certify, bayes.bound):
        with pytest.raises(ArgumentError, match="'bridge'"):
            call(x)
    with pytest.raises(NotFittedError):
        bb.Laplace(MLP((2, 3, 2))).limit(x)


def test_networks_that_are_not_piecewise_linear_raise_and_stay_as_they_were():
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).train()
    x = torch.randn(20, 2)
    bayes = bb.Laplace(model).fit([(x, torch.arange(20) % 2)])
    with pytest.raises(ModelError, match="'tanh'"):
        bayes.limit(x)
    assert model.training and not model[2]._forward_pre_hooks
    assert bayes.predict_proba(x).shape == (20, 2)
