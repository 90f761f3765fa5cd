"""Every structure over the last layer's weights, by what all have in common, against dense matrices."""

import pytest
import torch

import reference
from bitbayes.errors import DataError
from bitbayes.likelihoods import likelihood_for
from bitbayes.logits import LogitGaussian
from bitbayes.model import MatrixJacobian
from bitbayes.structures import CURVATURES
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


@pytest.mark.parametrize("case, k, bias", EVERY)
def test_whitened_vectors_have_the_norm_of_the_dense_inverse(case, k, bias):
    """gᵀS⁻¹g, S the sum of the covariances of some combinations of the weights."""
    bayes, parts = fitted(case, k, bias)
    width = parts[0].shape[1]
    combinations, vectors = torch.randn(4, 2, k).double(), torch.randn(4, 3, width).double()
    for prior_variance in VARIANCES:
        whitened = weight_gaussian(bayes).whiten(combinations, vectors, 1 / prior_variance)
        blocks = reference.covariance(case, *parts, prior_variance).reshape(k, width, k, width)
        for some, own, found in zip(combinations, vectors, whitened, strict=True):
            total = sum(torch.einsum("i,iajb,j->ab", c, blocks, c) for c in some)
            expected = torch.stack([g @ torch.linalg.solve(total, g) for g in own])
            close(found.square().sum(1), expected, 1e-7)


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


@pytest.mark.parametrize("structure", CURVATURES)
def test_the_estimate_of_memory_has_room_for_sums_gaussian_and_weights_and_not_much_more(structure):
    k, width = 10, 41
    bayes, _, _ = reference.fitted(k, model=reference.network(k, width=width - 1), structure=structure)
    (curvature,), gaussian = bayes.posterior.fitted.curvature.values(), weight_gaussian(bayes)
    parts = [*curvature.tensors().values(), *gaussian.tensors().values(), gaussian.draw(1, 1.0, None)]
    kept = sum(each.nbytes for each in parts if isinstance(each, torch.Tensor))
    assert kept <= type(curvature).bytes_needed(k, width) <= 50 * kept + 2**20


@pytest.mark.parametrize("case", ["full", "kron", "diag"])
def test_data_that_are_taken_out_again_leave_the_sums_of_the_others(case):
    _, (weights, features, _) = fitted(case, 3, True)
    kind, likelihood = CURVATURES[case], likelihood_for(3)
    first, second = (
        kind.of_features(part, part @ weights.T, likelihood) for part in (features[:10], features[10:])
    )
    whole = first + second
    for name, value in whole.without(second, max_ratio=1e6).tensors().items():
        torch.testing.assert_close(value, first.tensors()[name], rtol=1e-10, atol=1e-10)
    # The ten points are about a third of each sum: more than a hundredth, and less than nine tenths.
    whole.without(second, max_ratio=100)
    with pytest.raises(DataError, match="all but 1/1 of a sum"):
        whole.without(second, max_ratio=1 / 0.9)
    with pytest.raises(DataError, match="cannot be taken out"):
        first.without(whole, max_ratio=1e6)


@pytest.mark.parametrize("structure", CURVATURES)
def test_a_structure_is_there_over_all_layers_if_it_can_be_summed_from_derivatives(structure):
    kind, jacobian = CURVATURES[structure], MatrixJacobian(torch.ones(2, 1, 3, 1), torch.ones(2, 1, 2, 2, 1))
    if kind.over_all_layers:
        assert kind.of_jacobian(jacobian).tensors()
    else:
        with pytest.raises(NotImplementedError):
            kind.of_jacobian(jacobian)
