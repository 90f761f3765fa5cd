"""Predictions over all layers: drop-in, batches, gradients, and what a wider prior does to them."""

import math

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from bitbayes.errors import DataError
from bitbayes.model import Batch
from bitbayes.posteriors.all_layers import NODES, interpolation_weights
from bitbayes.prior import Prior
from dense import close, fitted
from reference import total_loss


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("name", ["convnet", "one logit"])
def test_a_tiny_prior_variance_gives_the_plain_networks_predictions(name, structure):
    bayes, model, x, _ = fitted(name, structure, prior_variance=1e-14)
    plain = model(x).detach()
    plain = plain.softmax(1) if plain.shape[1] > 1 else torch.cat([(-plain).sigmoid(), plain.sigmoid()], 1)
    methods = ("probit", "mc", "sampled_networks", "quadrature" if name == "one logit" else "pairwise")
    for method in methods:
        close(bayes.predict_proba(x, method=method), plain, 1e-5)  # deviations of 1e-7 times derivatives


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_one_logit_keeps_its_label_and_loses_confidence_as_the_prior_variance_grows(structure):
    bayes, model, x, _ = fitted("one logit", structure)
    x = 3 * torch.randn(50, 4, dtype=torch.float64)
    plain = model(x).detach().sigmoid()[:, 0]
    last = torch.maximum(plain, 1 - plain)
    for value in (1e-3, 1e-1, 1e1, 1e3):
        bayes.prior_variance = value
        probabilities = bayes.predict_proba(x)
        assert torch.equal(probabilities.argmax(1), (plain > 0.5).long())
        confidence = probabilities.amax(1)
        assert bool((confidence <= last).all())
        last = confidence


@pytest.fixture(scope="module")
def moons():
    """A network with two hidden layers of 20 units, trained on two moons, as in the paper."""
    torch.manual_seed(0)
    x, y = bb.toys.two_moons()
    x = x.double()
    model = bb.toys.MLP((2, 20, 20, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=1e-4)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.double()).backward()
        optimizer.step()
    assert float(((model(x)[:, 0] > 0) == y).double().mean()) > 0.97
    return model.eval(), x, y


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_two_moons_keep_their_labels_and_lose_confidence_as_the_prior_variance_grows(moons, structure):
    model, x, y = moons
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    side = torch.linspace(-4, 4, 21, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    points = torch.cat([x, grid, 100 * grid])  # at the data, around them, and far away
    plain = model(points).detach()[:, 0].sigmoid()
    last = torch.maximum(plain, 1 - plain)
    for value in torch.logspace(-8, 8, 17).tolist():
        bayes.prior_variance = value
        probabilities = bayes.predict_proba(points)
        assert torch.equal(probabilities.argmax(1), (plain > 0.5).long())
        confidence = probabilities.amax(1)
        assert bool((confidence <= last + 1e-12).all())
        last = confidence
    # Far away the plain network is certain, and the Bayesian one is not.
    assert float(torch.maximum(plain, 1 - plain)[-len(grid) :].mean()) > 0.99
    assert float(last[-len(grid) :].mean()) < 0.6


def test_the_drop_in_and_predictions_in_batches_agree():
    bayes, _, x, _ = fitted("convnet", "kron", predictive="pairwise")
    probabilities = bayes.predict_proba(x)
    close(bayes(x).softmax(1), probabilities, 1e-12)
    close(bayes.predict_proba([x[:5], (x[5:], torch.zeros(7))]), probabilities, 1e-12)
    one, _, x, _ = fitted("one logit", "kron")
    assert one(x).shape == (12, 1)
    close(one(x).sigmoid()[:, 0], one.predict_proba(x)[:, 1], 1e-12)


def test_the_gradient_of_the_drop_in_is_the_scaled_gradient_of_the_model():
    bayes, model, x, _ = fitted("one logit", "kron")
    x.requires_grad_()
    (ours,) = torch.autograd.grad(bayes(x).sum(), x)
    (plain,) = torch.autograd.grad(model(x).sum(), x)
    shrink = 1 / (1 + math.pi / 8 * bayes.logits(x).covariance[:, 0, 0]).sqrt()  # probit
    close(ours, plain * shrink[:, None], 1e-10)


STRUCTURES = ["diag", "kron", "full"]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_inference_mode_changes_no_prediction_limit_or_certificate(structure):
    _, x, y = dense.case("mlp")
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    outside = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    with torch.inference_mode():
        inside = bb.Laplace(model, layers="all", structure=structure).fit([(x + 0, y)])
        close(inside.predict_proba(x + 0), outside.predict_proba(x), 1e-12)
        close(inside.limit(x + 0).confidence, outside.limit(x).confidence, 1e-12)
        close(inside.certify(x + 0).confidence, outside.certify(x).confidence, 1e-12)


def test_the_interpolation_between_priors_is_within_two_percent():
    nodes = tuple(math.log(1e-8) + i * math.log(1e12) / (NODES - 1) for i in range(NODES))
    h = torch.logspace(-6, 11, 200, dtype=torch.float64)
    at_nodes = torch.stack([(h + math.exp(-node)).rsqrt() for node in nodes])  # (q, h)
    worst = []
    for step in range(400):
        at = nodes[0] + (nodes[-1] - nodes[0]) * step / 399
        exact = (h + math.exp(-at)).rsqrt()
        worst.append(float((interpolation_weights(nodes, at) @ at_nodes / exact - 1).abs().max()))
    assert max(worst) < 0.02 and max(worst[50:-50]) < 0.006


def test_logits_of_parts_join_to_those_of_all_points_and_can_be_selected():
    bayes, _, x, _ = fitted("mlp", "kron", n=12)
    parts = [Batch(part, None, "") for part in (x, x[:5], x[5:])]
    whole, *others = (by_prior for _, by_prior in bayes.posterior.logits_by_prior(parts))
    joined, chosen = type(whole).joined(others), whole.select(torch.tensor([7, 0]))
    expected = whole.at(Prior(0.3))
    assert len(joined.scale) == 12 and len(chosen.scale) == 2
    dense.close(whole.scaled_mean * whole.scale[:, None], expected.mean, 1e-12)
    assert torch.equal(whole.scale, expected.scale)
    variance = whole.mean_pair_variance(Prior(0.3))
    assert torch.equal(variance, expected.scaled_mean_pair_variance())
    for by_prior, rows in ((joined, slice(None)), (chosen, [7, 0])):
        dense.close(by_prior.at(Prior(0.3)).mean, expected.mean[rows], 1e-12)
        dense.close(by_prior.at(Prior(0.3)).covariance, expected.covariance[rows], 1e-12)


EXACT = ("diag", "full")


@pytest.mark.parametrize("prior_variance", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("structure", EXACT)
@pytest.mark.parametrize("name", dense.NETWORKS)
def test_logits_over_all_layers_are_those_of_the_dense_matrix(name, structure, prior_variance):
    bayes, model, x, y = fitted(name, structure, prior_variance=prior_variance)
    new = torch.randn(4, *x.shape[1:], dtype=x.dtype)
    gaussian = bayes.logits(new)
    sigma = dense.covariance(structure, model, x, y, prior_variance)
    close(gaussian.mean, model(new).detach())
    close(gaussian.covariance, dense.logits_covariance(model, sigma, new))


@pytest.mark.parametrize("structure", EXACT)
def test_log_evidence_over_all_layers_is_that_of_the_dense_matrix(structure):
    bayes, model, x, y = fitted("convnet", structure)
    theta = torch.cat([p.flatten() for p in dense.parameters(model).values()])
    for value in (0.01, 1.0, 50.0):
        sigma = dense.covariance(structure, model, x, y, value)
        evidence_penalty = theta.square().sum() / value + len(theta) * math.log(value) - torch.logdet(sigma)
        close(bayes.log_evidence(value), -total_loss(model(x).detach(), y) - evidence_penalty / 2)
    variable = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(bayes.log_evidence(variable), variable)
    step = 1e-4
    close(slope, (bayes.log_evidence(2 + step) - bayes.log_evidence(2 - step)) / (2 * step), 1e-6)


@pytest.mark.parametrize("seed", range(6))  # whether or not an eigenvalue rounds to less than zero
@pytest.mark.parametrize("structure", ["kron", "full"])
def test_directions_without_data_keep_a_wide_priors_variance_in_float32(structure, seed):
    """One input is the sum of the others, so one direction of the weights has no data."""
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    x, y = torch.randn(500, 4), torch.arange(500) % 3
    x[:, 3] = x[:, :3].sum(1)
    unseen, wide = torch.tensor([[1.0, 1.0, 1.0, -1.0]]), 1e7
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=wide).fit([(x, y)])
    contrast = torch.tensor([[1.0, -1.0, 0.0]])
    found = contrast @ bayes.logits(unseen).covariance[0] @ contrast.T
    # ‖unseen‖² = 4, ‖contrast‖² = 2. Rounding x leaves N·(6e-8)² ≪ 1/wide to be seen; the bias adds ≪ wide.
    close(found, torch.tensor([[8 * wide]]), 1e-3)


@pytest.mark.parametrize("size, message", [(1e38, "the network overflows"), (math.nan, "holds NaN")])
def test_inputs_whose_logits_are_not_finite_are_refused(size, message):
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    for layer in (model[0], model[2]):
        nn.init.constant_(layer.weight, 1.0)  # each of them makes inputs four or five times as large
    bayes = bb.Laplace(model, layers="all").fit([(torch.randn(12, 4), torch.arange(12) % 3)])
    x = torch.tensor([[0.0] * 4, [size] * 4])
    with pytest.raises(DataError, match=f"the third batch.*{message}"):
        bayes.posterior.logits(Batch(x, None, "the third batch"), Prior(1.0))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_predictions_whose_variances_overflow_float32_are_those_of_float64(structure):
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x, y = torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3
    far = torch.cat([x, 1e25 * x])  # squares of 1e50: only the scale of each point keeps them in float32
    expected = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)]).predict_proba(far)
    found = bb.Laplace(model.float(), layers="all", structure=structure).fit([(x.float(), y)])
    close(found.predict_proba(far.float()).double(), expected, 1e-4)
