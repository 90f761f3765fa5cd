"""The Gaussian over logits: an independent variance for every logit."""

import math

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.likelihoods import likelihood_for
from bitbayes.logits import CovarianceFactors, LogitGaussian
from ray_cases import laplace
from reference import KAPPA

FACTORS = ("none", "shared", "per point")


def gaussian(factor, k, dtype=torch.float64, mean_size=1.0, n=6):
    """A Gaussian with random factors, and means of this size."""
    r = k if factor == "none" else max(1, k - 1)
    shapes = {"none": None, "shared": (k, r), "per point": (n, k, r)}
    q = None if shapes[factor] is None else torch.randn(shapes[factor], dtype=dtype)
    factors = CovarianceFactors(torch.rand(n, r, dtype=dtype), q, torch.rand(n, dtype=dtype))
    mean = mean_size * torch.randn(n, k, dtype=dtype)
    return LogitGaussian(mean, factors, 1 + 5 * torch.rand(n, dtype=dtype))


def dense_covariance(gaussian):
    """Q diag(w) Qᵀ + shift·11ᵀ in units of scale², point by point in float64, (n, k, k)."""
    (n, k), (weights, factor, shift, independent, _) = gaussian.mean.shape, gaussian.factors
    assert independent is None
    points = []
    for i in range(n):
        q = torch.eye(k) if factor is None else factor if factor.dim() == 2 else factor[i]
        q, w = q.double(), torch.diag(weights[i].double())
        total = q @ w @ q.T + float(shift[i]) * torch.ones(k, k, dtype=torch.float64)
        points.append(total * float(gaussian.scale[i]) ** 2)
    return torch.stack(points)


def test_an_independent_variance_is_added_to_the_diagonal():
    bayes, x = laplace("mlp", 3, structure="diag")
    gaussian = bayes.logits(x)
    wide = gaussian.plus_independent(torch.full((len(x),), 1.5**0.5, dtype=torch.float64))
    more = (wide.covariance - gaussian.covariance).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(more, torch.full_like(more, 1.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mean_size, k", [(1e-3, 2), (1.0, 1), (1.0, 4), (1e4, 2)])
@pytest.mark.parametrize("factor", FACTORS)
def test_an_independent_variance_is_added_to_the_dense_covariance(factor, k, mean_size, dtype):
    before = gaussian(factor, k, dtype, mean_size)
    deviations = torch.tensor([0.0, 1e-3, 0.5, 1.0, 7.0, 300.0], dtype=torch.float64)
    after = before.plus_independent(deviations)
    identity = torch.eye(k, dtype=torch.float64)
    expected = dense_covariance(before) + deviations.square()[:, None, None] * identity
    rounding = 2 * torch.finfo(dtype).eps  # divided by another unit, and multiplied by it again
    torch.testing.assert_close(after.mean, before.mean, rtol=rounding, atol=0)
    assert after.factors.weights.dtype == after.covariance.dtype == dtype
    tolerance = 50 * torch.finfo(dtype).eps  # a few products and sums of numbers of one sign each
    for found, wanted in zip(after.covariance.double(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance * float(wanted.abs().max()))
    # Variances and pairs of logits, in units of scale², do not see the common shift.
    unit = after.scale.double().square()[:, None]
    shift = (before.factors.shift.double() * before.scale.double().square())[:, None]
    own = expected.diagonal(dim1=1, dim2=2) - shift
    found = after.scaled_variances().double() * unit
    torch.testing.assert_close(found, own, rtol=tolerance, atol=tolerance * float(shift.max()))
    if k == 1:
        return  # one logit has no pairs
    first, second = torch.triu_indices(k, k, 1)
    pairs = own[:, first] + own[:, second] - 2 * (expected[:, first, second] - shift)
    found = after.scaled_pair_variances(first, second).double() * unit
    scale = float(expected.abs().max())  # the subtraction in the reference loses that much
    torch.testing.assert_close(found, pairs, rtol=tolerance, atol=1e-15 * scale)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("dtype, size", [(torch.float32, 1e30), (torch.float64, 1e200)])
def test_variances_that_overflow_give_the_predictions_of_exact_arithmetic(factor, dtype, size):
    """Deviations of some times the mean: their squares are infinite, and the standardised means are not.

    Large means come with a large scale.
    """
    k = 3
    before = gaussian(factor, k, dtype)
    before = LogitGaussian(before.scaled_mean, before.factors, size * before.scale)
    for times in (0.3, 1.0, 30.0):
        deviations = torch.full((6,), times * size, dtype=torch.float64)
        assert bool(torch.isinf(deviations.to(dtype).square()).all())
        after = before.plus_independent(deviations)
        assert all(bool(each.isfinite().all()) for each in (after.factors.weights, after.scale, after.floor))
        # In units of the size. Beside these variances the 1 of 1 + κv is nothing.
        unit = before.scale.double() / size
        small = before.scaled_mean.double() * unit[:, None]
        gaps = small[:, :, None] - small[:, None, :]
        first, second = torch.meshgrid(torch.arange(k), torch.arange(k), indexing="ij")
        own = before.scaled_pair_variances(first, second).double() * unit.square()[:, None, None]
        z = gaps / (KAPPA * (own + 2 * times**2)).sqrt()
        expected = torch.softmax(-torch.logsumexp(-z, 2), 1)
        found = likelihood_for(k).predict(after, "pairwise").softmax(1).double()
        torch.testing.assert_close(found, expected, rtol=0, atol=20 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(
    "dtype, deviation", [(torch.float32, 1e25), (torch.float32, 1e150), (torch.float64, 1e200)]
)
def test_variances_beyond_all_means_give_predictions_without_a_preference(factor, dtype, deviation):
    after = gaussian(factor, 4, dtype).plus_independent(torch.full((6,), deviation, dtype=torch.float64))
    assert bool(after.factors.weights.isfinite().all())
    likelihood, equal = likelihood_for(4), torch.full((6, 4), 0.25, dtype=dtype)
    for method in likelihood.closed_forms:
        found = likelihood.predict(after, method).softmax(1)
        torch.testing.assert_close(found, equal, rtol=0, atol=1e-6)
    drawn = likelihood.drawn_probabilities(after, 10_000, None)
    # Five standard errors of an average of 10,000 draws, each 1 for one class of four.
    tolerance = 5 * math.sqrt(0.25 * 0.75 / 10_000)
    torch.testing.assert_close(drawn.mean(0), equal, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("factor", FACTORS)
def test_every_view_of_a_gaussian_has_the_independent_variance(factor, k, dtype):
    """Added twice, since variances add; two halves below each other are the whole."""
    before = gaussian(factor, k, dtype)
    deviations = torch.tensor([0.0, 1e-3, 0.5, 1.0, 7.0, 300.0], dtype=torch.float64)
    after = before.plus_independent(deviations).plus_independent(deviations.flip(0))
    added = deviations.square() + deviations.flip(0).square()
    expected = dense_covariance(before) + added[:, None, None] * torch.eye(k, dtype=torch.float64)
    tolerance = 100 * torch.finfo(dtype).eps
    unit = after.scale.double().square()

    average = torch.eye(k, dtype=torch.float64) - 1 / k
    mean, variances = after.scaled_centred()
    centred = (average @ expected @ average).diagonal(dim1=1, dim2=2)
    size = float(expected.abs().max())  # the reference takes the shift out by a subtraction
    found = variances.double() * unit[:, None]
    torch.testing.assert_close(found, centred, rtol=tolerance, atol=1e-14 * size)
    torch.testing.assert_close(
        mean * after.scale[:, None], before.mean - before.mean.mean(1, keepdim=True), rtol=0, atol=1e-5
    )

    own = expected.diagonal(dim1=1, dim2=2)
    pairs = own[:, :, None] + own[:, None, :] - 2 * expected
    first, second = torch.triu_indices(k, k, 1)
    found = after.scaled_pair_variances(first, second).double() * unit[:, None]
    torch.testing.assert_close(found, pairs[:, first, second], rtol=tolerance, atol=1e-14 * size)
    for found in (
        after.scaled_block_variances(slice(None), slice(None)),
        torch.cat([after.scaled_block_variances(slice(i, i + 1), slice(None)) for i in range(k)], dim=1),
    ):
        assert bool((found.diagonal(dim1=1, dim2=2) <= 1e-9).all())
        found = found.double() * unit[:, None, None]
        torch.testing.assert_close(found, pairs, rtol=tolerance, atol=tolerance * 1e-3 + 1e-14 * size)
    found = after.scaled_pair_variances(slice(0, 1), slice(1, None)).double() * unit[:, None]
    torch.testing.assert_close(found, pairs[:, 0, 1:], rtol=tolerance, atol=1e-14 * size)

    stacked = LogitGaussian.stacked([after, after])
    torch.testing.assert_close(stacked.covariance, torch.cat([after.covariance] * 2), rtol=0, atol=0)
    assert torch.equal(stacked.scaled_variances(), torch.cat([after.scaled_variances()] * 2))


@pytest.mark.parametrize("factor", FACTORS)
def test_draws_have_the_independent_variance(factor):
    before = gaussian(factor, 3)
    after = before.plus_independent(torch.tensor([0.0, 0.1, 1, 2, 5, 9], dtype=torch.float64))
    count = 40_000
    draws = after.scaled_draws(count, torch.Generator().manual_seed(0)) * after.scale[:, None]
    expected = after.covariance - (before.factors.shift * before.scale.square())[:, None, None]
    for i in range(6):
        found = torch.cov(draws[:, i].T, correction=0)
        sizes = expected[i].diagonal()
        # The error of a sample covariance has the deviation √((CᵢᵢCⱼⱼ + Cᵢⱼ²)/count); six of these.
        error = 6 * ((sizes[:, None] * sizes + expected[i].square()) / count).sqrt()
        assert bool(((found - expected[i]).abs() <= error).all())


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("factor", FACTORS)
def test_draws_are_logits_with_the_mean_and_covariance_of_the_gaussian(factor, k, independent):
    cold = gaussian(factor, k, mean_size=3.0).at_temperature(0.4)
    expected = dense_covariance(cold)
    if independent:
        deviations = torch.tensor([0.0, 0.1, 1, 2, 5, 9], dtype=torch.float64)
        cold = cold.plus_independent(deviations)
        expected = expected + torch.diag_embed(deviations.square()[:, None].expand(-1, k))
    count = 40_000
    draws = cold.draw(count, torch.Generator().manual_seed(0))
    assert draws.shape == (count, 6, k)
    sizes = expected.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(cold.variances(), sizes, rtol=1e-13, atol=0)  # a few sums of one sign
    torch.testing.assert_close(cold.covariance, expected, rtol=1e-12, atol=1e-12)
    # A mean has the deviation √(Cᵢᵢ/count), a sample covariance √((CᵢᵢCⱼⱼ + Cᵢⱼ²)/count); six of these.
    assert bool(((draws.mean(0) - cold.mean).abs() <= 6 * (sizes / count).sqrt()).all())
    for i in range(6):
        found = torch.cov(draws[:, i].T, correction=0).reshape(k, k)
        error = 6 * ((sizes[i][:, None] * sizes[i] + expected[i].square()) / count).sqrt()
        assert bool(((found - expected[i]).abs() <= error).all())
    # Points are independent of each other.
    between = torch.corrcoef(draws[:, :, 0].T) - torch.eye(6)
    assert float(between.abs().max()) <= 6 / math.sqrt(count)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_draws_of_a_laplace_give_its_own_uncertainty(layers):
    """From the public draws: mutual information by entropies, against `uncertainty`'s own draws."""
    torch.manual_seed(0)
    x, y = 5 * torch.randn(60, 4, dtype=torch.float64), torch.arange(60) % 3
    bayes = bb.Laplace(nn.Linear(4, 3).double(), layers=layers, prior_variance=10.0).fit([(x, y)])
    bayes.temperature = 0.7
    count = 4_000
    p = bayes.logits(x).draw(count, torch.Generator().manual_seed(0)).softmax(2)
    entropies = torch.special.entr(p).sum(2)
    found = torch.special.entr(p.mean(0)).sum(1) - entropies.mean(0)
    expected = bayes.uncertainty(x, samples=count).mutual_information
    # Each term is a mean of numbers in [0, log 3], so of a deviation below log(3)/2 = 0.55; of two sets of
    # draws, two terms each: 6·2·0.55/√4000 = 0.1. Averaged over points it is far less.
    torch.testing.assert_close(found, expected, rtol=0, atol=0.1)
    assert abs(float(found.mean() - expected.mean())) < 0.005


def test_a_pair_of_logits_has_the_variance_it_is_made_with():
    variance, scale = torch.rand(6).double(), 1 + torch.rand(6).double()
    pair, own = LogitGaussian.of_pair(variance, scale), torch.rand(6).double()
    assert torch.equal(pair.scaled_mean.diff(dim=1)[:, 0], -torch.ones(6).double())
    torch.testing.assert_close(pair.scaled_mean_pair_variance(), variance)
    torch.testing.assert_close(pair.scaled_pair_variances(0, 1), variance)
    more = pair.plus_independent(own * scale).scaled_mean_pair_variance()
    torch.testing.assert_close(more, variance + 2 * own.square())


def test_the_mean_pair_variance_of_one_logit_is_its_own():
    weights, own = torch.rand(5, 1).double(), torch.rand(5).double()
    ones = torch.ones(5, dtype=torch.float64)
    gaussian = LogitGaussian(weights, CovarianceFactors(weights, None, 0 * ones, own), ones)
    assert torch.equal(gaussian.scaled_mean_pair_variance(), weights[:, 0] + own)


@pytest.mark.parametrize("factor", [*FACTORS, "table"])
@pytest.mark.parametrize("independent", [None, 0.7])
def test_the_mean_variance_of_pairs_is_that_of_the_dense_covariance(factor, independent):
    torch.manual_seed(0)
    found, k = gaussian("none" if factor == "table" else factor, 4), 4
    covariance = dense_covariance(found) / found.scale.square()[:, None, None]
    if factor == "table":  # variances of the logits less their average, and nothing else
        table = torch.rand(k, k, dtype=torch.float64)
        found = LogitGaussian(found.scaled_mean, found.factors._replace(table=table), found.scale)
        expected = found.factors.weights @ table.sum(0) * 2 / (k - 1)
    else:
        pairs = [(i, j) for i in range(k) for j in range(k) if i != j]
        expected = sum(covariance[:, i, i] + covariance[:, j, j] - 2 * covariance[:, i, j] for i, j in pairs)
        expected = expected / len(pairs)
    if independent is not None:
        found = found.plus_independent(found.scale * math.sqrt(independent))
        expected = expected + 2 * independent
    torch.testing.assert_close(found.scaled_mean_pair_variance(), expected)


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("factor", [None, "shared", "own"])
def test_in_units_of_the_noise_every_covariance_has_the_product_of_two_deviations(factor, independent):
    n, k, r = 5, 3, 3
    shapes = {None: None, "shared": (k, r), "own": (n, k, r)}
    q = None if factor is None else torch.randn(*shapes[factor], dtype=torch.float64)
    own = torch.rand(n, dtype=torch.float64) if independent else None
    factors = CovarianceFactors(torch.rand(n, r).double(), q, torch.zeros(n).double(), own)
    gaussian = LogitGaussian(torch.randn(n, k).double(), factors, 1 + torch.rand(n).double())
    deviations = torch.tensor([0.1, 1.0, 30.0], dtype=torch.float64)
    found = gaussian.at_noise(deviations, k)
    expected = gaussian.covariance * torch.outer(deviations, deviations)
    torch.testing.assert_close(found.covariance, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(found.variances(), expected.diagonal(dim1=1, dim2=2), rtol=1e-13, atol=1e-13)
    assert torch.equal(found.mean, gaussian.mean)
