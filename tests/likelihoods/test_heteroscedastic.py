"""A noise that depends on x: loss, curvature and evidence against autograd, scipy and dense matrices."""

import math

import numpy
import pytest
import torch
from scipy import stats
from torch import nn

import bitbayes as bb
import reference
from bitbayes.errors import ArgumentError, DataError, ModelError
from bitbayes.likelihoods import Heteroscedastic
from bitbayes.logits import CovarianceFactors, LogitGaussian

LIKELIHOOD = Heteroscedastic()


def outputs_and_labels(n=9):
    return torch.randn(n, 2, dtype=torch.float64), 2 * torch.randn(n, 1, dtype=torch.float64)


def case(n=40, **options):
    """A fitted network with a mean and a log variance, its inputs and targets."""
    model, x = reference.network(2), torch.randn(n, 3, dtype=torch.float64)
    y = model(x)[:, :1].detach() + torch.randn(n, 1).double()
    options = {"likelihood": "heteroscedastic", "residual": False, **options}
    return bb.Laplace(model, **options).fit(reference.loader(x, y)), x, y


def test_losses_are_minus_the_log_density():
    outputs, labels = outputs_and_labels()
    expected = -stats.norm.logpdf(labels[:, 0], outputs[:, 0], (outputs[:, 1] / 2).exp())
    found = LIKELIHOOD.losses(outputs, labels) + math.log(2 * math.pi) / 2
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-13, atol=1e-13)


def test_the_curvature_is_the_hessian_averaged_over_the_labels():
    """The Hessian is quadratic in y: five Gauss–Hermite points average it exactly."""
    outputs, _ = outputs_and_labels(4)
    nodes, weights = (torch.tensor(each) for each in numpy.polynomial.hermite_e.hermegauss(5))
    hessian = reference.autograd_hessian(lambda f, y: LIKELIHOOD.losses(f[None], y[None])[0])
    for f, found in zip(outputs, LIKELIHOOD.curvature(outputs), strict=True):
        drawn = [f[0] + (f[1] / 2).exp() * node for node in nodes]
        total = sum(w * hessian(f, y.reshape(1)) for w, y in zip(weights, drawn, strict=True))
        torch.testing.assert_close(found, total / weights.sum(), rtol=1e-12, atol=1e-12)
    root = LIKELIHOOD.root(outputs)
    torch.testing.assert_close(root @ root.mT, LIKELIHOOD.curvature(outputs), rtol=1e-13, atol=1e-13)


def test_drawn_gradients_have_the_curvature_on_average():
    outputs = torch.tensor([[0.3, -1.2]], dtype=torch.float64).expand(200_000, 2)
    drawn = LIKELIHOOD.draw(outputs, torch.Generator().manual_seed(0))
    outer = drawn[:, :, None] * drawn[:, None, :]
    error = 5 * outer.std(0) / len(drawn) ** 0.5
    assert bool(((outer.mean(0) - LIKELIHOOD.curvature(outputs[:1])[0]).abs() <= error).all())


def test_the_noise_is_the_mean_of_its_exponential():
    """E exp(s) over the Gaussian of s, by draws; its relative deviation is √((e^v − 1)/n)."""
    factors = CovarianceFactors(torch.tensor([[0.2, 0.5]]).double(), None, torch.zeros(1).double())
    gaussian = LogitGaussian(torch.tensor([[1.0, -0.7]]).double(), factors, torch.ones(1).double())
    mean, variance, noise = LIKELIHOOD.values(gaussian)
    draws = (-0.7 + 0.5**0.5 * torch.randn(200_000, dtype=torch.float64)).exp()
    assert (float(mean), float(variance)) == pytest.approx((1.0, 0.2))
    assert float(noise) == pytest.approx(float(draws.mean()), rel=5 * math.sqrt((math.e**0.5 - 1) / 200_000))


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_variance_and_evidence_are_those_of_dense_matrices(structure):
    factor, prior = 1.7, 0.6
    bayes, x, y = case(structure=structure, prior_variance=prior, noise_variance=factor)
    features, weights = reference.head_features(bayes.model, x), reference.head_weights(bayes.model)
    outputs = features @ weights.T
    blocks = []
    for weight in ((-outputs[:, 1]).exp() / factor, torch.full((len(x),), 0.5).double()):
        h = (features * weight[:, None]).T @ features
        blocks.append(torch.diag(torch.diag(h)) if structure == "diag" else h)
    eye = torch.eye(features.shape[1], dtype=torch.float64)
    sigmas = [torch.linalg.inv(h + eye / own) for h, own in zip(blocks, (prior * factor, prior), strict=True)]
    variances = [torch.einsum("nd,de,ne->n", features, sigma, features) for sigma in sigmas]
    predicted = bayes.predict(x, joint=True)
    torch.testing.assert_close(predicted.mean[:, 0], outputs[:, 0], rtol=0, atol=1e-12)
    torch.testing.assert_close(predicted.variance[:, 0], variances[0], rtol=1e-9, atol=1e-12)
    noise = factor * (outputs[:, 1] + variances[1] / 2).exp()
    torch.testing.assert_close(predicted.noise_variance[:, 0], noise, rtol=1e-9, atol=1e-12)
    joint = features @ sigmas[0] @ features.T
    torch.testing.assert_close(predicted.covariance, joint[None], rtol=1e-9, atol=1e-11)
    expected = stats.norm.logpdf(y[:, 0], outputs[:, 0], (factor * outputs[:, 1].exp()).sqrt()).sum()
    for own, sigma, variance in zip(weights, sigmas, (prior * factor, prior), strict=True):
        expected += stats.norm.logpdf(own, 0, math.sqrt(variance)).sum()
        expected += len(own) / 2 * math.log(2 * math.pi) + float(torch.linalg.slogdet(sigma)[1]) / 2
    assert float(bayes.log_evidence()) == pytest.approx(expected, rel=1e-9)


def test_tuning_mends_a_noise_that_is_too_small_and_files_keep_it(tmp_path):
    """The network's noise is right but for a factor of 9."""
    torch.manual_seed(1)
    x = torch.randn(3000, 2, dtype=torch.float64)
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        model.bias.zero_()
    y = x[:, :1] + 3 * (x[:, 1:] / 2).exp() * torch.randn(3000, 1).double()
    bayes = bb.Laplace(model, likelihood="heteroscedastic").fit([(x[:1000], y[:1000])])
    bayes.tune([(x[1000:2000], y[1000:2000])])
    # The relative deviation of a variance of 1,000 points is √(2/1000); five of them.
    assert bayes.noise_variance[0] == pytest.approx(9, rel=0.23)
    found = bayes.evaluate([(x[2000:], y[2000:])])
    assert found["coverage90"] == pytest.approx(0.9, abs=0.05)  # five deviations of 1,000 points
    assert bool((bayes.predict(100 * x[:50]).deviation.isfinite()).all())
    bayes.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", model)
    assert torch.equal(loaded.predict(x[:5]).deviation, bayes.predict(x[:5]).deviation)
    bayes.export(tmp_path / "bayes.pt2", x[:2])
    values, deviations = torch.export.load(tmp_path / "bayes.pt2").module()(x[:5])
    predicted = bayes.predict(x[:5])
    torch.testing.assert_close(values, predicted.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(deviations, predicted.deviation, rtol=1e-9, atol=0)


def test_the_residual_widens_the_mean_and_not_the_noise():
    bayes, x, y = case(n=200, residual="auto")
    bayes.tune([(x, y)])
    with_it = bayes.predict(x)
    bayes.settings = bb.Settings(bayes.prior_variance, noise_variance=bayes.noise_variance)
    without = bayes.predict(x)
    assert bool((with_it.variance > without.variance).all())
    torch.testing.assert_close(with_it.noise_variance, without.noise_variance, rtol=1e-9, atol=0)


def test_drawn_weights_have_the_variances_of_both_heads():
    bayes, x, _ = case(prior_variance=0.5, noise_variance=3.0)
    draws = bayes.sample(40_000, generator=torch.Generator().manual_seed(0))
    features = bayes.model.activation(bayes.model.hidden(x[:5])).detach()
    values = torch.einsum("skd,nd->snk", draws["head.weight"], features) + draws["head.bias"][:, None]
    ratio = values.var(0) / bayes.logits(x[:5]).variances()
    # The relative deviation of a sample variance is √(2/n); five of them.
    assert float((ratio - 1).abs().max()) < 5 * math.sqrt(2 / 40_000)


def test_other_numbers_of_outputs_and_targets_are_refused():
    x = torch.randn(6, 3)
    options = {"likelihood": "heteroscedastic"}
    with pytest.raises(ArgumentError, match="'heteroscedastic' does not fit a model with 3 output"):
        bb.Laplace(nn.Linear(3, 3), **options).fit([(x, torch.randn(6))])
    with pytest.raises(DataError, match=r"shape \(6, 2\); expected \(6, 1\)"):
        bb.Laplace(nn.Linear(3, 2), **options).fit([(x, torch.randn(6, 2))])
    with pytest.raises(ModelError, match="layers='last'"):
        bb.Laplace(nn.Linear(3, 2), layers="all", **options).fit([(x, torch.randn(6))])
