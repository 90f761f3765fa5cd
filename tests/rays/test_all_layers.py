"""Limits and certificates over all layers, against predictions far away."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError
from bitbayes.likelihoods import Categorical
from bitbayes.model import fingerprint
from bitbayes.prior import Prior
from bitbayes.toys import digits, digits_lenet
from ray_cases import NETWORKS, agrees, deltas, fine_grid, laplace, largest_beyond


@pytest.mark.parametrize(
    "k, method, structure",
    [(1, "probit", "diag"), (1, "quadrature", "kron"), (3, "pairwise", "kron"), (3, "meanfield", "diag")],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_limits_are_predictions_far_away_and_certificates_hold(name, k, method, structure):
    options = {"structure": structure, "predictive": method, "prior_variance": 0.1}
    bayes, x = laplace(name, k, n=8, layers="all", **options)
    bayes.temperature = 0.6 if structure == "diag" else 1.0
    limit, certificate = bayes.limit(x), bayes.certify(x)
    far = bayes.predict_proba(1e9 * x).max(1)
    torch.testing.assert_close(limit.confidence, far.values, rtol=0, atol=1e-5)
    assert bool((limit.label == far.indices).all())
    top = largest_beyond(bayes, x, fine_grid(certificate.alpha, 20))
    gap = certificate.confidence - torch.maximum(top, certificate.limit)
    assert gap.min() >= 0
    assert gap.max() <= (1e-3 if k == 1 else 0.02)  # the grid is coarse


def test_certificates_with_a_residual_hold_over_all_layers():
    bayes, x = laplace("mlp", 3, n=10, layers="all", prior_variance=0.1, residual=True)
    bayes.temperature = 0.5
    certificate = bayes.certify(x)
    assert bool((certificate.limit == 1 / 3).all())
    assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 30))).all())


def test_the_limit_of_logits_that_stop_growing_is_their_prediction():
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[0].weight.fill_(-1.0)
        model[0].bias.fill_(1.0)
    x = torch.tensor([[-1.0], [0.5], [0.2]], dtype=torch.float64)
    bayes = bb.Laplace(model, layers="all").fit([(x, torch.tensor([0, 1, 1]))])
    dead = torch.tensor([[2.0], [0.0]], dtype=torch.float64)  # the first stops at 0.5, the second never moves
    expected = bayes.predict_proba(1e3 * dead).amax(1)
    torch.testing.assert_close(bayes.limit(dead).confidence, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("residual", [False, ["2"]])
@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_derivatives_that_grow_beside_logits_that_do_not_have_the_limit_of_chance(structure, residual):
    """A unit without weights is on for every input: its weights are uncertain, and δ·x multiplies them.

    Its share in the variance of a logit is tiny at first, and all of it from δ = 1e8 on.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 3)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0], [1.0]]))
        model[0].bias.copy_(torch.tensor([3.0, -5.0]))
        model[2].weight[:, 0] *= 1e-4
        model[2].bias.copy_(torch.tensor([2.0, -1.0, -1.0]))
    x = torch.randn(30, 1, dtype=torch.float64)
    options = {"layers": "all", "structure": structure, "prior_variance": 1e-3, "residual": residual}
    bayes = bb.Laplace(model, **options).fit([(x, torch.arange(30) % 3)])
    if residual:
        levels = {"input": 0.0, "head": 1.0, "classes": 0.0}
        bayes.settings = replace(bayes.settings, levels=levels, near_variance=0.1)
    ray = torch.tensor([[-1.0]], dtype=torch.float64)
    near, far = (float(bayes.predict_proba(delta * ray).max()) for delta in (1.0, 1e18))
    assert near > 0.8 and far == pytest.approx(1 / 3, abs=1e-6)
    certificate = bayes.certify(ray)
    for limit in (certificate.limit, bayes.limit(ray).confidence):
        assert float(limit) == pytest.approx(1 / 3, abs=1e-9)
    assert float(certificate.confidence) >= near


@pytest.mark.parametrize("k, method", [(1, "probit"), (3, "pairwise")])
def test_limits_and_certificates_of_the_full_structure(k, method):
    bayes, x = laplace("mlp", k, n=12, layers="all", structure="full", predictive=method, prior_variance=0.1)
    agrees(bayes, x)
    certificate = bayes.certify(x)
    top = torch.maximum(largest_beyond(bayes, x, fine_grid(certificate.alpha, 20)), certificate.limit)
    assert 0 <= (certificate.confidence - top).min() <= (certificate.confidence - top).max() <= 0.02


@pytest.mark.parametrize("structure", ["diag", "kron"])
@pytest.mark.slow
def test_limits_of_the_shipped_lenet_in_float32_are_those_of_float64(structure):
    """The limits in float32 are compared with predictions in float64."""
    images, labels = digits().test_images, digits().test_labels
    options = {"layers": "all", "structure": structure, "prior_variance": 1e-3, "curvature": "fisher"}
    model = digits_lenet()
    bayes = bb.Laplace(model, **options).fit([(images[:8], labels[:8])])
    limit = bayes.limit(images[8:11])
    double = copy.deepcopy(model).double()  # with the same Gaussian over its weights
    exact = bb.Laplace(double, **options)
    exact.set_fitted(replace(bayes.posterior.fitted, fingerprint=fingerprint(double)))
    far = exact.predict_proba(1e9 * images[8:11].double()).max(1)
    torch.testing.assert_close(limit.confidence, far.values, rtol=0, atol=1e-5)
    assert torch.equal(limit.label, far.indices)


class SharedAndFrozen(nn.Module):
    """A convolution called twice, a parameter of no layer, a frozen layer, and a bias without its weight."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, padding=1, padding_mode="reflect").requires_grad_(False)
        self.shared = nn.Conv2d(3, 3, 3, padding=1)
        self.gain = nn.Parameter(torch.tensor([0.5, 2.0, -1.0])[:, None, None])
        self.middle, self.head = nn.Linear(12, 6), nn.Linear(6, 3)
        self.middle.weight.requires_grad_(False)

    def forward(self, x):
        x = nn.functional.leaky_relu(self.gain * self.shared(self.stem(x)), 0.2)
        x = torch.relu(x + self.shared(x))
        return self.head(torch.relu(self.middle(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))))


def shared_and_frozen(layers="all"):
    """A fitted Laplace approximation of such a network, and inputs."""
    x = torch.randn(10, 1, 6, 6, dtype=torch.float64)
    bayes = bb.Laplace(SharedAndFrozen().double(), layers=layers, structure="diag", prior_variance=0.5)
    return bayes.fit([(x, torch.arange(10) % 3)]), x


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize(
    "name, structure",
    [*itertools.product(NETWORKS, ("diag", "kron", "full")), ("shared and frozen", "diag")],
)
def test_the_gaussian_along_a_ray_is_that_of_its_points(name, structure, layers):
    """At each u it is the Gaussian over the logits at δ·x, up to their common shift."""
    if name == "shared and frozen":
        bayes, x = shared_and_frozen(layers)
    else:
        bayes, x = laplace(name, 3, n=6, layers=layers, structure=structure, prior_variance=0.1)
    prior = Prior(bayes.prior_variance)
    (ray,) = bayes.posterior.rays(x, prior, find_alpha=True, tolerance=0.0)
    row, t = torch.arange(len(x)), Categorical().differences(3)
    for u in (0.2, 0.5, 0.9, 1.0):
        delta = ray.delta(row, torch.full_like(ray.alpha, u))
        exact = bayes.logits(x * delta.reshape(-1, *[1] * (x.dim() - 1)))
        found, size = ray.at(u), exact.mean.abs().amax(1)
        # In units of what is there. Slopes of 1e-12 of the largest are left out of a ray.
        assert float((((found.mean - exact.mean) @ t).abs().amax(1) / size).max()) < 1e-9
        expected = t.T @ exact.covariance @ t
        gap = (t.T @ found.covariance @ t - expected).abs().amax((1, 2))
        assert float((gap / expected.abs().amax((1, 2))).max()) < 1e-9


def test_limits_and_certificates_of_shared_frozen_and_bare_parameters():
    bayes, x = shared_and_frozen()
    agrees(bayes, x)
    certificate = bayes.certify(x)
    top = torch.maximum(largest_beyond(bayes, x, fine_grid(certificate.alpha, 20)), certificate.limit)
    assert 0 <= (certificate.confidence - top).min() <= (certificate.confidence - top).max() <= 0.02


def test_rows_taken_in_parts_give_the_same_limits_and_certificates(monkeypatch):
    bayes, x = laplace("mlp", 3, n=20, layers="all")
    whole, certificate = bayes.limit(x), bayes.certify(x)
    monkeypatch.setattr("bitbayes.model.jacobians.memory.CPU_PASS_BYTES", 3000)
    torch.testing.assert_close(bayes.limit(x), whole)
    torch.testing.assert_close(bayes.certify(x), certificate)


def test_inputs_that_are_integers_mappings_infinite_or_empty_raise():
    bayes, x = laplace("mlp", 3, n=10, layers="all")
    cases = ((x.long(), ArgumentError), ({"x": x}, ArgumentError), (x / 0, DataError), (x[:0], DataError))
    for bad, error in cases:
        for ask in (bayes.limit, bayes.certify, bayes.bound):
            with pytest.raises(error):
                ask(bad)
