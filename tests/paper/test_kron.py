"""The paper's Kronecker formula against dense float64 references, in files, at extremes, and along rays."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
import reference
from bitbayes.errors import ArgumentError
from bitbayes.structures import CURVATURES
from bitbayes.toys import MLP
from paper.kron import PaperKronCurvature, PaperKronGaussian

PAPER = "paper-kron"
ALL_LAYERS = {"layers": "all", "structure": PAPER, "curvature": bb.Fisher()}
VARIANCES = (0.3, 83_000.0)
SHAPES = list(itertools.product((1, 2, 3, 10), (True, False)))
METHODS = [(1, "probit"), (1, "quadrature"), (2, "pairwise"), (4, "probit"), (4, "pairwise")]
METHODS += [(4, "meanfield")]


def dense_covariance(weights, features, labels, prior_variance, bias):
    """(B/√N + √τI)⁻¹ ⊗ (A/√N + √τI)⁻¹ for the weights; (B + τI)⁻¹ for the bias, by itself."""
    (k, width), n = weights.shape, len(features)
    tau = 1 / torch.as_tensor(prior_variance, dtype=torch.float64)
    d = width - bias
    outputs = reference.logit_hessians(features @ weights.T, labels).sum(0)
    inputs = sum(torch.outer(phi, phi) for phi in features[:, :d])
    eye_k, eye_d = torch.eye(k, dtype=torch.float64), torch.eye(d, dtype=torch.float64)
    left = torch.linalg.inv(outputs / math.sqrt(n) + tau.sqrt() * eye_k)
    right = torch.linalg.inv(inputs / math.sqrt(n) + tau.sqrt() * eye_d)
    covariance = torch.zeros(k, width, k, width, dtype=torch.float64)
    covariance[:, :d, :, :d] = torch.kron(left, right).reshape(k, d, k, d)
    if bias:
        covariance[:, d, :, d] = torch.linalg.inv(outputs + tau * eye_k)
    return covariance.reshape(k * width, k * width)


def fitted(k, bias=True, prior_variance=1.0, **options):
    """A fitted Laplace, and what the reference needs: weights, features and labels."""
    bayes, x, y = reference.fitted(k, bias, prior_variance=prior_variance, structure=PAPER, **options)
    return bayes, (reference.head_weights(bayes.model), reference.head_features(bayes.model, x), y)


def weight_gaussian(bayes):
    """The Gaussian over the last layer's weights."""
    (gaussian,) = bayes.posterior.decomposed().values()
    return gaussian


# ---- the last layer


@pytest.mark.parametrize("prior_variance", VARIANCES)
@pytest.mark.parametrize("k, bias", SHAPES)
def test_the_covariance_of_logits_is_the_dense_one(k, bias, prior_variance):
    bayes, parts = fitted(k, bias, prior_variance)
    x = 3 * torch.randn(5, 3, dtype=torch.float64)
    sigma = dense_covariance(*parts, prior_variance, bias)
    expected = reference.logits_covariance(sigma, reference.head_features(bayes.model, x), k)
    dense.close(bayes.logits(x).covariance, expected, 1e-8)


@pytest.mark.parametrize("prior_variance", VARIANCES)
@pytest.mark.parametrize("k, bias", SHAPES)
def test_the_gaussian_over_weights_is_the_dense_one(k, bias, prior_variance):
    """With one draw along each eigenvector the covariance is exact, and not that of some draws."""
    bayes, parts = fitted(k, bias)
    gaussian, size = weight_gaussian(bayes), parts[0].numel()
    assert isinstance(gaussian, PaperKronGaussian)
    precisions = gaussian.precisions(1 / prior_variance)
    basis = torch.eye(size, dtype=torch.float64).reshape(size, *precisions.shape)
    roots = gaussian.to_weights(basis * precisions.rsqrt()).flatten(1)
    sigma = dense_covariance(*parts, prior_variance, bias)
    dense.close(roots.T @ roots, sigma, 1e-8)
    largest = 1 / torch.linalg.eigvalsh(sigma)[0]
    torch.testing.assert_close(gaussian.largest_precision(1 / prior_variance), largest, rtol=1e-8, atol=0)


@pytest.mark.parametrize("k, bias", [(1, True), (3, True), (3, False)])
def test_draws_have_the_dense_covariance(k, bias):
    bayes, parts = fitted(k, bias, 0.5)
    sigma, n = dense_covariance(*parts, 0.5, bias), 20_000
    draws = bayes.sample(n, generator=torch.Generator().manual_seed(1))
    stacked = torch.cat([draws["head.weight"], *([draws["head.bias"][:, :, None]] if bias else [])], 2)
    flat, variances = stacked.flatten(1), torch.diag(sigma)
    # Five standard errors of each entry of an empirical mean and covariance.
    standard = ((torch.outer(variances, variances) + sigma.square()) / n).sqrt()
    assert float(((torch.cov(flat.T) - sigma).abs() / standard).max()) < 5
    assert float(((flat.mean(0) - parts[0].flatten()).abs() / (variances / n).sqrt()).max()) < 5


@pytest.mark.parametrize("k", [1, 3])
def test_the_evidence_is_that_of_its_covariance_and_has_its_derivative(k):
    bayes, (weights, features, labels) = fitted(k)

    def expected(variance):
        log_det = torch.linalg.slogdet(dense_covariance(weights, features, labels, variance, True))[1]
        size = weights.numel()
        log_prior = -weights.square().sum() / (2 * variance) - size / 2 * variance.log()
        return log_prior - reference.total_loss(features @ weights.T, labels) + log_det / 2

    ours = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    found, dense_one = bayes.log_evidence(ours), expected(theirs)
    torch.testing.assert_close(found, dense_one, rtol=1e-8, atol=0)
    gradients = (torch.autograd.grad(found, ours)[0], torch.autograd.grad(dense_one, theirs)[0])
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=0)


@pytest.mark.parametrize("k", [1, 3])
def test_float32_agrees_with_float64_to_its_digits(k):
    model, (x, y) = reference.network(k), reference.data(k)
    options = {"structure": PAPER, "prior_variance": 10.0}
    double = bb.Laplace(model, **options).fit(reference.loader(x, y)).predict_proba(x)
    single = bb.Laplace(model.float(), **options).fit(reference.loader(x.float(), y))
    torch.testing.assert_close(single.predict_proba(x.float()).double(), double, rtol=0, atol=6e-6)


# ---- all layers


@pytest.mark.parametrize("name", ["mlp", "one logit"])
def test_over_all_layers_each_factor_is_damped_by_tau(name):
    bayes, model, x, _ = dense.fitted(name, PAPER, prior_variance=0.2, curvature=bb.Fisher())
    curvature, total = bayes.posterior.fitted.curvature, 0
    derivatives, place = dense.jacobians(model, x), 0
    for layer in bayes.posterior.layers:
        outputs, inputs, positions = curvature[layer.name].tensors().values()
        width, root = layer.shapes[0][1], positions.sqrt()
        left = torch.linalg.inv(outputs[0] / root + torch.eye(len(outputs[0])) / 0.2)
        right = torch.linalg.inv(inputs[0, :width, :width] / root + torch.eye(width) / 0.2)
        blocks = [torch.kron(left, right)]
        if layer.has_bias:
            blocks.append(torch.linalg.inv(outputs[0] + torch.eye(len(outputs[0])) / 0.2))
        part = derivatives[:, :, place : place + layer.size]
        total, place = total + part @ torch.block_diag(*blocks) @ part.mT, place + layer.size
    dense.close(bayes.logits(x).covariance, total, 1e-9)


def test_its_sums_are_those_of_kron():
    paper, model, x, y = dense.fitted("convnet", PAPER, curvature=bb.Fisher())
    exact = bb.Laplace(model, layers="all", structure="kron", curvature=bb.Fisher()).fit(dense.loader(x, y))
    for name, sums in exact.posterior.fitted.curvature.items():
        for field, value in sums.tensors().items():
            assert torch.equal(paper.posterior.fitted.curvature[name].tensors()[field], value)
    assert bool(paper.predict_proba(x).isfinite().all())


# ---- the name


def test_importing_the_module_makes_the_structure_known():
    assert CURVATURES[PAPER] is PaperKronCurvature
    with pytest.raises(ArgumentError, match=r"structure='paper'.*'kron'.*'paper-kron'"):
        bb.Laplace(nn.Linear(2, 2), structure="paper")
    code = "from bitbayes.structures import CURVATURES; print('paper-kron' in CURVATURES)"
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert alone.stdout.split() == ["False"]


@pytest.mark.parametrize("options", [{"structure": PAPER}, ALL_LAYERS], ids=["last", "all"])
def test_a_file_comes_back(options, tmp_path):
    bayes, x, y = reference.fitted(3, prior_variance=0.1, **options)
    bayes.save(tmp_path / "b")
    again = bb.Laplace.load(tmp_path / "b", bayes.model)
    assert again.structure == PAPER and again.prior_variance == 0.1
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    more = bb.Laplace(bayes.model, **options).fit([(2 * x, y)])
    both = bb.merge([tmp_path / "b", more])
    assert torch.equal(both.predict_proba(x), bb.merge([bayes, more]).predict_proba(x))
    assert torch.equal(again.update([(x, y)]).predict_proba(x), bayes.update([(x, y)]).predict_proba(x))


# ---- extremes


@pytest.mark.parametrize("options", [{"structure": PAPER}, ALL_LAYERS], ids=["last", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_prior_variances_from_1e_minus_300_to_1e300_give_finite_predictions(options, dtype):
    """Over all layers its precisions without data are τ², which leaves the range of numbers before τ does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).to(dtype)
    x, y = torch.randn(12, 4, dtype=dtype), torch.arange(12) % 3
    seen = x.clone()
    seen[:, :2] = 0  # no data about the weights of these inputs, nor about those of a dead unit
    model[0].bias.data[0] = -100
    bayes = bb.Laplace(model, **options).fit([(seen, y)])
    for exponent in (-300, -160, -40, -20, 14, 20, 30, 40, 80, 160, 300):
        bayes.prior_variance = 10.0**exponent
        p = bayes.predict_proba(torch.cat([x, 1e10 * x]))
        dense.close(p.sum(1), torch.ones(24, dtype=dtype), 1e-6)
        assert all(bool(each.isfinite().all()) for each in bayes.sample(2).values())
        if exponent < -15:  # no variance: the network's own prediction
            dense.close(p[:12], model(x).softmax(1).to(p), 1e-5)


# ---- rays


def along_rays(k, method, prior_variance=5.0):
    torch.manual_seed(0)
    model = MLP((3, 6, 4, k)).double()
    x, labels = 2 * torch.randn(40, 3, dtype=torch.float64), torch.arange(40) % max(k, 2)
    options = {"structure": PAPER, "predictive": method, "prior_variance": prior_variance}
    return bb.Laplace(model, **options).fit([(x, labels)]), x, labels


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("k, method", METHODS)
def test_limits_are_predictions_far_away_and_below_the_bounds(k, method, temperature):
    bayes, x, _ = along_rays(k, method)
    bayes.temperature = temperature
    limit = bayes.limit(x)
    probs = bayes.predict_proba(1e9 * x)
    torch.testing.assert_close(limit.confidence, probs.amax(1), rtol=0, atol=1e-5)
    assert limit.confidence.max() <= bayes.bound() + 1e-12
    assert bayes.bound() <= bayes.bound(form="theorem") + 1e-12
    certificate = bayes.certify(x[:5])
    for factor in (1.0, 3.0, 100.0):
        beyond = bayes.predict_proba(x[:5] * (factor * certificate.alpha.clamp_min(1e-3))[:, None])
        assert bool((beyond.amax(1) <= certificate.confidence + 1e-9).all())


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_bounds_of_one_logit_are_those_of_the_dense_covariance(temperature):
    bayes, x, labels = along_rays(1, "probit")
    bayes.temperature = temperature
    head = bayes.model[-1]
    mean = torch.cat([head.weight, head.bias[:, None]], 1).detach()
    features = nn.Sequential(*list(bayes.model)[:-1])(x).detach()
    features = torch.cat([features, torch.ones_like(x[:, :1])], 1)
    sigma = dense_covariance(mean, features, labels, 5.0, True)
    z = mean.norm() / temperature / (reference.KAPPA * torch.linalg.eigvalsh(sigma)[0]).sqrt()
    torch.testing.assert_close(bayes.bound(form="theorem"), z.sigmoid(), rtol=1e-9, atol=0)
    tight = (mean[0] @ torch.linalg.solve(sigma, mean[0]) / reference.KAPPA).sqrt() / temperature
    torch.testing.assert_close(bayes.bound(), tight.sigmoid(), rtol=1e-9, atol=0)


def test_bounds_over_all_layers_hold():
    torch.manual_seed(0)
    model = MLP((3, 6, 4, 1)).double()
    x, labels = 2 * torch.randn(40, 3, dtype=torch.float64), torch.arange(40) % 2
    bayes = bb.Laplace(model, prior_variance=5.0, **ALL_LAYERS).fit([(x, labels)])
    assert bool((bayes.limit(x[:5]).confidence <= bayes.bound(x[:5]) + 1e-9).all())
