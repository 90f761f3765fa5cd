"""Every structure over the last layer's weights, by what all have in common, against dense matrices."""

import pytest
import torch

import reference
from bitbayes.logits import LogitGaussian
from head_cases import EVERY, VARIANCES, close, fitted
from reference import STRUCTURES


def weight_gaussian(bayes):
    """The Gaussian over the last layer's weights."""
    (gaussian,) = bayes.posterior.decomposed().values()
    return gaussian


@pytest.mark.parametrize("case, k, bias", EVERY)
def test_the_largest_precision_is_the_largest_eigenvalue_of_the_dense_precision(case, k, bias):
    bayes, parts = fitted(case, k, bias)
    for prior_variance in VARIANCES:
        largest = torch.linalg.eigvalsh(reference.precision(case, *parts, prior_variance))[-1]
        found = weight_gaussian(bayes).largest_precision(1 / prior_variance)
        torch.testing.assert_close(found, largest, rtol=1e-8, atol=0)


@pytest.mark.parametrize("case, k, bias", EVERY)
def test_weights_from_the_eigenbasis_have_the_dense_covariance(case, k, bias):
    """With one draw along each eigenvector the covariance is exact, and not that of some draws."""
    bayes, parts = fitted(case, k, bias)
    gaussian, size = weight_gaussian(bayes), parts[0].numel()
    for prior_variance in VARIANCES:
        precisions = gaussian.precisions(1 / prior_variance)
        basis = torch.eye(size, dtype=torch.float64).reshape(size, *precisions.shape)
        roots = gaussian.to_weights(basis * precisions.rsqrt())
        assert roots.shape == (size, *parts[0].shape)
        close(roots.flatten(1).T @ roots.flatten(1), reference.covariance(case, *parts, prior_variance))


@pytest.mark.parametrize("case, k, bias", EVERY)
def test_the_covariance_of_the_logits_is_that_of_the_dense_weights(case, k, bias):
    bayes, parts = fitted(case, k, bias)
    gaussian, features = weight_gaussian(bayes), parts[1]
    for prior_variance in VARIANCES:
        factors = gaussian.covariance(gaussian.coordinates(features), 1 / prior_variance)
        found = LogitGaussian(features.new_zeros(len(features), k), factors, torch.ones_like(features[:, 0]))
        sigma = reference.covariance(case, *parts, prior_variance)
        expected = reference.logits_covariance(sigma, features, k)
        close(found.covariance, expected)


@pytest.mark.parametrize("k, bias", [(1, True), (3, False)])
@pytest.mark.parametrize("case", STRUCTURES)
def test_draws_of_the_gaussian_over_weights_have_the_dense_covariance(case, k, bias):
    bayes, parts = fitted(case, k, bias)
    sigma, n = reference.covariance(case, *parts, 0.5), 20_000
    draws = weight_gaussian(bayes).draw(n, 2.0, torch.Generator().manual_seed(0))
    assert draws.shape == (n, *parts[0].shape)
    flat, variances = draws.flatten(1), torch.diag(sigma)
    # Five standard errors of each entry of an empirical covariance, and of a mean, which is 0.
    standard = ((torch.outer(variances, variances) + sigma.square()) / n).sqrt()
    assert float(((flat.T @ flat / n - sigma).abs() / standard).max()) < 5
    assert float((flat.mean(0).abs() / (variances / n).sqrt()).max()) < 5
