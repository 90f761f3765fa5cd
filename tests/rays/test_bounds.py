"""The theorems' bounds: no limit and no prediction exceeds them."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bitbayes as bb
from bitbayes.logits import with_bias
from bitbayes.model import forward
from bitbayes.rays import prior_limits
from bitbayes.toys import MLP
from ray_cases import laplace
from reference import KAPPA, STRUCTURES, covariance, hessian

CASES = [
    (1, "probit"),
    (1, "quadrature"),
    (2, "pairwise"),
    (2, "probit"),
    (4, "pairwise"),
    (4, "probit"),
    (4, "meanfield"),
]


def head_gaussian(bayes):
    """The Gaussian over the last layer's weights."""
    (gaussian,) = bayes.posterior.decomposed().values()
    return gaussian


def parts(bayes, x, labels):
    """μ (k, D), φ̃ (n, D) and Σ (kD, kD), by dense matrices."""
    head = bayes.model[-1]
    weights = torch.cat([head.weight, head.bias[:, None]], 1).detach()
    with torch.no_grad():
        features = with_bias(forward(bayes.model, bayes.posterior.head, x)[0], True)
    return weights, features, covariance(bayes.structure, weights, features, labels, bayes.prior_variance)


def fitted(k, structure, method, prior_variance=1.0, seed=0):
    torch.manual_seed(seed)
    model = MLP((3, 6, 4, k)).double()
    x, labels = 2 * torch.randn(40, 3, dtype=torch.float64), torch.arange(40) % max(k, 2)
    bayes = bb.Laplace(model, predictive=method, prior_variance=prior_variance, structure=structure)
    return bayes.fit([(x, labels)]), x, labels


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_bound_of_one_logit_is_the_theorems(structure, temperature):
    bayes, x, labels = fitted(1, structure, "probit", 5.0)
    bayes.temperature = temperature
    weights, _, sigma = parts(bayes, x, labels)
    smallest = torch.linalg.eigvalsh(sigma)[0]
    expected = (weights.norm() / temperature / (KAPPA * smallest).sqrt()).sigmoid()
    torch.testing.assert_close(bayes.bound(form="theorem"), expected)
    bayes.predictive = "quadrature"
    expected = torch.special.ndtr(weights.norm() / temperature / smallest.sqrt())
    torch.testing.assert_close(bayes.bound(form="theorem"), expected)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
@pytest.mark.parametrize("method", ["probit", "pairwise", "meanfield"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_bound_of_k_logits_is_the_theorems(structure, method, temperature):
    """Every |z| ≤ ‖cᵀμ‖/(T‖c‖√(κλ_min)); the largest share of a class has its score at its highest."""
    k = 4
    bayes, x, labels = fitted(k, structure, method, 5.0)
    bayes.temperature = temperature
    weights, _, sigma = parts(bayes, x, labels)
    weights, smallest = weights / temperature, torch.linalg.eigvalsh(sigma)[0]
    one = torch.eye(k, dtype=torch.float64)
    if method == "pairwise":
        z = torch.zeros(k, k, dtype=torch.float64)
        for i in range(k):
            for j in range(k):
                z[i, j] = (weights[i] - weights[j]).norm() / (2 * KAPPA * smallest).sqrt()
        low, high = -torch.logsumexp(z, 1), -torch.logsumexp(-z, 1)
    else:
        square = 2 if method == "meanfield" else 1 - 1 / k
        high = ((one - 1 / k) @ weights).norm(dim=1) / (square * KAPPA * smallest).sqrt()
        low = -high
    shares = []
    for i in range(k):
        others = sum(low[j].exp() for j in range(k) if j != i)
        shares.append(high[i].exp() / (high[i].exp() + others))
    # The smallest eigenvalue of a dense inverse is good to 1e-9.
    torch.testing.assert_close(bayes.bound(form="theorem"), torch.stack(shares).amax(), rtol=1e-7, atol=0)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("k", [2, 4])
def test_smallest_eigenvalue_of_a_difference_is_at_least_twice_that_of_sigma(structure, k):
    bayes, x, labels = fitted(k, structure, "pairwise", 5.0)
    _, features, sigma = parts(bayes, x, labels)
    smallest = 1 / head_gaussian(bayes).largest_precision(1 / 5.0)
    torch.testing.assert_close(torch.linalg.eigvalsh(sigma)[0], smallest, rtol=1e-6, atol=0)
    width = features.shape[1]
    difference = torch.zeros(width, k, width, dtype=torch.float64)
    difference[:, 0], difference[:, 1] = torch.eye(width), -torch.eye(width)
    difference = difference.reshape(width, k * width)
    assert torch.linalg.eigvalsh(difference @ sigma @ difference.T)[0] >= 2 * smallest * (1 - 1e-9)


def test_pairwise_is_no_looser_than_with_the_largest_pair_alone():
    """confidence ≤ 1/(1 + (k − 1)/R), R = (1 + (k − 1)e^Z)/(1 + (k − 1)e^−Z), is what one Z for all gives."""
    k = 4
    bayes, x, labels = fitted(k, "isotropic", "pairwise", 5.0)
    weights, _, _ = parts(bayes, x, labels)
    largest = float(torch.cdist(weights, weights).amax()) / math.sqrt(2 * KAPPA * 5.0)
    ratio = (1 + (k - 1) * math.exp(largest)) / (1 + (k - 1) * math.exp(-largest))
    assert bayes.limit(x).confidence.amax() <= bayes.bound(form="theorem") <= 1 / (1 + (k - 1) / ratio)


@given(
    case=st.sampled_from(CASES),
    structure=st.sampled_from(STRUCTURES),
    prior_variance=st.floats(1e-2, 1e6),
    temperature=st.floats(1e-2, 1e2),
    seed=st.integers(0, 10_000),
)
def test_no_limit_and_no_prediction_exceeds_the_bound(case, structure, prior_variance, temperature, seed):
    k, method = case
    bayes, x, _ = fitted(k, structure, method, prior_variance, seed)
    bayes.temperature = temperature
    bound = bayes.bound()
    assert bound.shape == () and 1 / max(k, 2) <= bound <= 1
    assert bayes.limit(x).confidence.amax() <= bound + 1e-12
    for delta in (0, 1, 1e3, 1e9):
        assert bayes.predict_proba(delta * x).amax() <= bound + 1e-12


@pytest.mark.parametrize("k, method", [(1, "probit"), (2, "pairwise"), (4, "pairwise"), (4, "probit")])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_confidences_at_tiny_and_huge_prior_variances_keep_their_limits(k, method, structure):
    bayes, x, _ = fitted(k, structure, method)
    fit = bayes.posterior
    with torch.no_grad():
        features, logits, _ = forward(bayes.model, fit.head, x)
    limits = prior_limits(with_bias(features, True), logits, head_gaussian(bayes), method)
    confidences = []
    for value in (1e-12, 1e-2, 1.0, 1e2, 1e5, 1e12):
        bayes.prior_variance = value
        confidences.append(bayes.predict_proba(x).amax(1))
    torch.testing.assert_close(confidences[0], limits.certain, rtol=0, atol=1e-6)
    # At 1e12 an isotropic Gaussian, which has no curvature at all, is 1e-6 from its limit of 1/k.
    assert bool((confidences[-1] <= limits.flat + 1e-5).all())
    if k <= 2:
        for before, after in pairwise(confidences):
            assert bool((after <= before + 1e-9).all())


def test_the_papers_limit_for_huge_prior_variances_is_below_the_confidence():
    """The paper prints σ(|f|/(1 + √(κ λ_max(H) ‖φ‖²))), which is no bound. 1/λ_max(H) makes it one."""
    bayes, x, labels = fitted(1, "full", "probit", 1e12)
    weights, features, _ = parts(bayes, x, labels)
    largest = torch.linalg.eigvalsh(hessian(weights, features, labels))[-1]
    logits = (features @ weights.T)[:, 0].abs()
    right = (logits / (1 + KAPPA * features.square().sum(1) / largest).sqrt()).sigmoid()
    torch.testing.assert_close(
        prior_limits(features, features @ weights.T, head_gaussian(bayes), "probit").flat,
        right,
    )
    # One feature, one weight: the limit is reached, and lies above the printed one.
    model = torch.nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(1.0)
    one = torch.tensor([[3.0], [-3.0]], dtype=torch.float64).repeat(20, 1)
    bayes = bb.Laplace(model, prior_variance=1e12).fit([(one, (one[:, 0] > 0).long())])
    curvature = hessian(model.weight.detach(), one, (one[:, 0] > 0).long())[0, 0]
    printed = torch.sigmoid(3 / (1 + (KAPPA * curvature * 9).sqrt()))
    correct = torch.sigmoid(3 / (1 + KAPPA * 9 / curvature).sqrt())
    confidence = bayes.predict_proba(one).amax()
    torch.testing.assert_close(confidence, correct)
    assert printed < confidence - 0.05


def test_networks_of_every_kind_have_a_bound():
    bayes, x = laplace("residual", 3)
    assert bayes.limit(x).confidence.amax() <= bayes.bound() <= 1
