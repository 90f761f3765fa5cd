"""Limits and certificates with a residual at the inputs and at hidden layers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ray_cases import CERTIFIED, METHODS, NETWORKS, deltas, fine_grid, laplace, largest_beyond


@pytest.mark.parametrize("k, method", METHODS)
@pytest.mark.parametrize("name", ["mlp"])
def test_the_limit_with_a_residual_is_uniform(name, k, method):
    bayes, x = laplace(name, k, predictive=method, prior_variance=0.01, residual=True)
    bayes.temperature = 0.5
    limit = bayes.limit(x)
    assert bool((limit.confidence == 1 / max(2, k)).all())
    far = bayes.predict_proba(1e9 * x)
    torch.testing.assert_close(far.amax(1), limit.confidence.to(far), rtol=0, atol=1e-3)
    clear = far.amax(1) > limit.confidence + 1e-9
    assert bool((far.argmax(1) == limit.label)[clear].all())


def test_confidence_approaches_its_limit_like_the_inverse_root_of_delta():
    bayes, x = laplace("mlp", 4, prior_variance=0.01, residual=True)
    gaps = torch.stack([bayes.predict_proba(delta * x).amax(1) - 0.25 for delta in (1e8, 1e10)])
    slopes = (gaps[1] / gaps[0]).log10() / 2
    grows = gaps[0] > 1e-8
    assert grows.sum() > 10
    torch.testing.assert_close(slopes[grows], torch.full_like(slopes[grows], -0.5), rtol=0, atol=1e-3)


def test_the_limit_of_a_zero_input_is_its_prediction():
    bayes, x = laplace("mlp", 3, residual=True)
    zero = torch.zeros_like(x[:1])
    torch.testing.assert_close(bayes.limit(zero).confidence, bayes.predict_proba(zero).amax(1))
    certificate = bayes.certify(zero)
    assert 0 <= certificate.confidence - certificate.limit <= 2e-3


@pytest.mark.parametrize("threshold", [0.0, 5.0])
@pytest.mark.parametrize("k, method", CERTIFIED)
def test_certificates_with_a_residual_hold_and_are_tight(k, method, threshold):
    bayes, x = laplace("mlp", k, n=20, predictive=method, prior_variance=0.5, residual=True)
    bayes.residual_variance, bayes.residual_threshold = 1e-3, threshold
    bayes.temperature = 1.5 if threshold else 1.0
    certificate = bayes.certify(x)
    top = largest_beyond(bayes, x, fine_grid(certificate.alpha, 150))
    gap = certificate.confidence - torch.maximum(top, certificate.limit)
    assert gap.min() >= 0
    assert gap.max() <= (1e-4 if k == 1 else 0.01)


@pytest.mark.parametrize("name", NETWORKS)
def test_certificates_with_a_residual_hold_on_every_kind_of_network(name):
    bayes, x = laplace(name, 3, n=20, residual=True)
    certificate = bayes.certify(x)
    assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 30))).all())
    assert bool((certificate.limit == 1 / 3).all())


LAYERS = {"mlp": ("2", "4"), "convnet": ("4", "8"), "residual": ("norm", "head")}


@pytest.mark.parametrize(
    "name, k, method", [("mlp", *METHODS[0]), ("convnet", *METHODS[3]), ("residual", *METHODS[5])]
)
def test_the_limit_with_hidden_levels_is_uniform(name, k, method):
    bayes, x = laplace(name, k, n=20, predictive=method, prior_variance=0.01, residual=LAYERS[name])
    limit = bayes.limit(x)
    assert bool((limit.confidence == 1 / max(2, k)).all())
    torch.testing.assert_close(bayes.predict_proba(1e9 * x).amax(1), limit.confidence, rtol=0, atol=1e-3)


@pytest.mark.parametrize("k, method", CERTIFIED)
def test_certificates_with_hidden_levels_hold_and_are_tight(k, method):
    bayes, x = laplace("mlp", k, n=15, predictive=method, prior_variance=0.5, residual=("2", "4"))
    bayes.residual_variance, bayes.residual_threshold = 1e-3, 2.0
    certificate = bayes.certify(x)
    top = torch.maximum(largest_beyond(bayes, x, fine_grid(certificate.alpha, 100)), certificate.limit)
    gap = certificate.confidence - top
    assert gap.min() >= 0
    assert gap.max() <= (1e-4 if k == 1 else 0.01)


@given(
    name=st.sampled_from(list(LAYERS)),
    k=st.integers(1, 3),
    layers=st.sampled_from(["last", "all"]),
    variance=st.floats(1e-6, 1e2),
    threshold=st.floats(0, 10),
    temperature=st.floats(1e-2, 1e2),
    seed=st.integers(0, 10_000),
)
def test_certificates_with_hidden_levels_hold_on_any_network(
    name, k, layers, variance, threshold, temperature, seed
):
    bayes, x = laplace(name, k, n=6, seed=seed, layers=layers, prior_variance=0.1, residual=LAYERS[name])
    bayes.residual_variance, bayes.residual_threshold = variance, threshold
    bayes.temperature = temperature
    certificate = bayes.certify(x)
    assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 12))).all())


def test_the_limit_of_a_zero_input_with_hidden_levels_is_its_prediction():
    bayes, x = laplace("mlp", 3, residual=("4",))
    zero = torch.zeros_like(x[:1])
    torch.testing.assert_close(bayes.limit(zero).confidence, bayes.predict_proba(zero).amax(1))
