"""Properties that the paper proves of the last layer, and others that follow from the formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bitbayes as bb
import reference

ONE_LOGIT = ("probit", "quadrature")

seeds = st.integers(0, 2**32 - 1)
structures = st.sampled_from(reference.STRUCTURES)
biases = st.booleans()
log_priors = st.floats(-6, 6)
log_scales = st.floats(-3, 6)


def fitted(structure, k, bias, seed, prior_variance=1.0):
    """A fitted network with random weights, some of them large, and inputs."""
    torch.manual_seed(seed)
    model = reference.network(k, bias)
    with torch.no_grad():
        model.head.weight *= 10 ** (2 * torch.rand(()))
    x, y = reference.data(k)
    bayes = bb.Laplace(model, prior_variance=prior_variance, structure=structure).fit([(x, y)])
    return bayes, x


def confidence(bayes, x, method):
    return bayes.predict_proba(x, method=method).max(1).values


# ---- one logit


@given(structures, biases, seeds, log_priors, log_scales)
def test_the_decision_boundary_is_unchanged(structure, bias, seed, log_prior, log_scale):
    bayes, x = fitted(structure, 1, bias, seed, 10**log_prior)
    x = 10**log_scale * x
    logit = bayes.model(x)[:, 0].detach()
    bayes.predictive = "probit"
    assert torch.equal(bayes(x)[:, 0].detach().sign(), logit.sign())
    z = bayes(x)[:, 0].detach()
    for method in ONE_LOGIT:
        margin = bayes.predict_proba(x, method=method)[:, 1] - 1 / 2
        # Below this a probability cannot be told from 1/2, or from what quadrature promises of it.
        sure = z.abs() > (1e-9 if method == "quadrature" else 1e-15)
        assert torch.equal(margin[sure].sign(), logit[sure].sign())
        assert bool((margin[~sure].abs() < 1e-9).all())


@given(structures, biases, seeds, log_priors, st.floats(0, 6), st.sampled_from(ONE_LOGIT))
def test_confidence_never_rises_with_the_prior_variance(structure, bias, seed, log_prior, more, method):
    bayes, x = fitted(structure, 1, bias, seed)
    bayes.prior_variance = 10**log_prior
    before = confidence(bayes, x, method)
    bayes.prior_variance = 10 ** (log_prior + more)
    slack = 1e-10 if method == "quadrature" else 1e-15
    assert bool((confidence(bayes, x, method) <= before + slack).all())


@given(structures, biases, seeds, log_priors, st.sampled_from(ONE_LOGIT))
def test_confidence_never_exceeds_the_plain_networks(structure, bias, seed, log_prior, method):
    bayes, x = fitted(structure, 1, bias, seed, 10**log_prior)
    plain = bayes.model(x)[:, 0].detach().abs().sigmoid()
    slack = 1e-10 if method == "quadrature" else 1e-15
    assert bool((confidence(bayes, x, method) <= plain + slack).all())


# ---- two logits, pairwise


@given(structures, biases, seeds, log_priors, st.floats(0, 6))
def test_confidence_of_two_logits_never_rises_with_the_prior_variance(structure, bias, seed, log_prior, more):
    bayes, x = fitted(structure, 2, bias, seed)
    bayes.prior_variance = 10**log_prior
    before = confidence(bayes, x, "pairwise")
    bayes.prior_variance = 10 ** (log_prior + more)
    # The pair's variance is a sum of squares of rounded numbers: its last digits may fall.
    assert bool((confidence(bayes, x, "pairwise") <= before + 1e-13).all())


@given(structures, biases, seeds, log_priors)
def test_pairwise_of_two_logits_is_the_sigmoid_of_their_difference(structure, bias, seed, log_prior):
    bayes, x = fitted(structure, 2, bias, seed, 10**log_prior)
    contrast = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    weights, labels = reference.head_weights(bayes.model), torch.arange(len(x)) % 2
    features = reference.head_features(bayes.model, x)
    sigma = reference.covariance(structure, weights, features, labels, 10**log_prior)
    for n, phi in enumerate(reference.head_features(bayes.model, x[:4])):
        direction = torch.kron(contrast, phi)
        z = direction @ weights.flatten() / torch.sqrt(1 + reference.KAPPA * (direction @ sigma @ direction))
        p = bayes.predict_proba(x[n : n + 1], method="pairwise")[0]
        # The dense inverse is good to cond·eps = 1e6·30·2e-16 of its largest entry.
        torch.testing.assert_close(p[1], z.sigmoid(), rtol=0, atol=1e-7)


@given(seeds, log_priors)
def test_two_logits_are_one_of_twice_the_prior_variance(seed, log_prior):
    # Only the difference counts, and that of two independent weights has twice the variance.
    two, x = fitted("full", 2, True, seed, 10**log_prior)
    one = reference.network(1)
    one.hidden.load_state_dict(two.model.hidden.state_dict())
    with torch.no_grad():
        one.head.weight.copy_(two.model.head.weight[1:] - two.model.head.weight[:1])
        one.head.bias.copy_(two.model.head.bias[1:] - two.model.head.bias[:1])
    one = bb.Laplace(one, structure="full", prior_variance=2 * 10**log_prior)
    one.fit([(x, torch.arange(len(x)) % 2)])
    torch.testing.assert_close(one.predict_proba(x), two.predict_proba(x), rtol=0, atol=1e-10)


# ---- any number of logits


@given(structures, biases, seeds, st.sampled_from([1, 2, 3, 10]))
def test_no_prior_variance_gives_the_plain_network(structure, bias, seed, k):
    bayes, x = fitted(structure, k, bias, seed, 1e-14)
    logits = bayes.model(x).detach()
    plain = logits.softmax(1) if k > 1 else torch.cat([(-logits).sigmoid(), logits.sigmoid()], 1)
    for method in ONE_LOGIT if k == 1 else ("probit", "pairwise"):
        # v ≤ ‖φ̃‖²σ₀² ≤ 5e-14, which takes κv/2 of a logit below 1e3.
        torch.testing.assert_close(bayes.predict_proba(x, method=method), plain, rtol=0, atol=1e-10)
    # Draws stray by √v ≤ 2.3e-7 times some 5, and probabilities by half of that at most.
    torch.testing.assert_close(bayes.predict_proba(x, method="mc"), plain, rtol=0, atol=1e-6)


def shifted(bayes, x, change):
    """A Laplace with these options for a network whose logits are all changed by one amount."""
    model = reference.network(bayes.model.head.out_features)
    model.load_state_dict(bayes.model.state_dict())
    with torch.no_grad():
        change(model.head)
    other = bb.Laplace(model, structure=bayes.structure, prior_variance=bayes.prior_variance)
    return other.fit([(x, torch.arange(len(x)) % model.head.out_features)])


@given(structures, seeds, log_priors, st.sampled_from([2, 3, 10]), st.floats(-100, 100))
def test_a_common_constant_changes_no_probability(structure, seed, log_prior, k, constant):
    bayes, x = fitted(structure, k, True, seed, 10**log_prior)
    other = shifted(bayes, x, lambda head: head.bias.add_(constant))
    for method in ("probit", "pairwise", "bridge"):
        # Logits of 100 are rounded at 1e-14, and the bridge divides by variances of 1e-6 of each other.
        torch.testing.assert_close(
            other.predict_proba(x, method=method), bayes.predict_proba(x, method=method), rtol=0, atol=1e-10
        )


@given(structures, seeds, log_priors, st.sampled_from([2, 3, 10]))
def test_a_common_weight_changes_no_probability(structure, seed, log_prior, k):
    bayes, x = fitted(structure, k, True, seed, 10**log_prior)
    common = 10 * torch.randn(bayes.model.head.in_features, dtype=torch.float64)
    other = shifted(bayes, x, lambda head: head.weight.add_(common))
    for method in ("probit", "pairwise", "bridge"):
        torch.testing.assert_close(
            other.predict_proba(x, method=method), bayes.predict_proba(x, method=method), rtol=0, atol=1e-10
        )


@given(structures, seeds, log_priors)
def test_the_order_of_the_classes_does_not_matter(structure, seed, log_prior):
    bayes, x = fitted(structure, 4, True, seed, 10**log_prior)
    order = torch.randperm(4)
    model = reference.network(4)
    model.load_state_dict(bayes.model.state_dict())
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight[order].clone())
        model.head.bias.copy_(model.head.bias[order].clone())
    other = bb.Laplace(model, prior_variance=10**log_prior, structure=structure)
    other.fit([(x, torch.argsort(order)[torch.arange(len(x)) % 4])])
    for method in ("probit", "pairwise", "bridge"):
        expected = bayes.predict_proba(x, method=method)[:, order]
        torch.testing.assert_close(other.predict_proba(x, method=method), expected, rtol=0, atol=1e-10)


def test_far_from_the_data_the_plain_network_is_confident_and_the_bayesian_is_not():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 1)).double()
    x = torch.randn(60, 2, dtype=torch.float64)
    bayes = bb.Laplace(model, prior_variance=10.0).fit([(x, (x[:, 0] > 0).long())])
    far = 1e6 * x
    assert float(model(far)[:, 0].detach().abs().sigmoid().min()) > 0.999
    # The paper's bound: σ(‖w‖ / √(π/8·λ_min(Σ))), with Σ the covariance of weights and bias.
    sigma = torch.cov(bayes.sample(4000)["2.weight"][:, 0].T)
    bound = float(model[2].weight.detach().norm()) / math.sqrt(
        math.pi / 8 * float(torch.linalg.eigvalsh(sigma)[0])
    )
    assert float(confidence(bayes, far, "probit").max()) <= 1 / (1 + math.exp(-bound)) + 1e-3
    assert float(confidence(bayes, far, "probit").max()) < 0.999


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("k", [1, 3])
def test_more_data_never_widens_a_posterior(structure, k):
    # H is a sum of squares. (Kron is not: its two sums are averaged, but repeated data double it.)
    torch.manual_seed(0)
    model, (x, y) = reference.network(k), reference.data(k)
    once = bb.Laplace(model, structure=structure).fit([(x, y)])
    before = torch.diagonal(once.logits(x).covariance, dim1=1, dim2=2)
    after = torch.diagonal(once.update([(x, y)]).logits(x).covariance, dim1=1, dim2=2)
    assert bool((after < before).all())
