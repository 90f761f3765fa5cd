"""Posteriors over all layers against dense matrices, and everything the last layer has besides."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import bitbayes as bb
import dense
from bitbayes.errors import FileError
from dense import close, fitted, loader
from reference import total_loss

EXACT = ("diag", "full")


@pytest.mark.parametrize("prior_variance", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("structure", EXACT)
@pytest.mark.parametrize("name", dense.NETWORKS)
def test_logits_are_those_of_the_dense_matrix(name, structure, prior_variance):
    bayes, model, x, y = fitted(name, structure, prior_variance=prior_variance)
    new = torch.randn(4, *x.shape[1:], dtype=x.dtype)
    gaussian = bayes.logits(new)
    sigma = dense.covariance(structure, model, x, y, prior_variance)
    close(gaussian.mean, model(new).detach())
    close(gaussian.covariance, dense.logits_covariance(model, sigma, new))


@pytest.mark.parametrize("structure", EXACT)
def test_log_evidence_is_that_of_the_dense_matrix(structure):
    bayes, model, x, y = fitted("convnet", structure)
    theta = torch.cat([p.flatten() for p in dense.parameters(model).values()])
    for value in (0.01, 1.0, 50.0):
        sigma = dense.covariance(structure, model, x, y, value)
        occam = theta.square().sum() / value + len(theta) * math.log(value) - torch.logdet(sigma)
        close(bayes.log_evidence(value), -total_loss(model(x).detach(), y) - occam / 2)
    variable = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(bayes.log_evidence(variable), variable)
    step = 1e-4
    close(slope, (bayes.log_evidence(2 + step) - bayes.log_evidence(2 - step)) / (2 * step), 1e-6)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_draws_have_the_posteriors_moments(structure):
    bayes, model, x, _ = fitted("convnet", structure)
    draws = bayes.sample(20_000, generator=torch.Generator().manual_seed(0))
    own = dense.parameters(model)
    assert set(draws) == set(own)
    assert all(draws[name].shape == (20_000, *own[name].shape) for name in own)
    gaps = torch.cat([(draws[name] - own[name]).flatten(1) for name in own], dim=1)  # (s, P)
    linear = torch.einsum("nkp,sp->snk", dense.jacobians(model, x[:2]), gaps)
    expected = bayes.logits(x[:2]).covariance
    found = torch.einsum("snk,snl->nkl", linear, linear) / len(linear)
    # Five standard errors of a covariance, √(2/s) of the largest variance at most.
    assert float((found - expected).abs().max()) < 5 * (2 / 20_000) ** 0.5 * float(expected.abs().max())


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_update_is_one_fit_on_both(structure):
    bayes, model, x, y = fitted("residual", structure)
    half = bb.Laplace(model, layers="all", structure=structure).fit(loader(x[:7], y[:7]))
    half.update(loader(x[7:], y[7:]))
    close(half.logits(x).covariance, bayes.logits(x).covariance, 1e-12)
    assert float(half.log_evidence()) == pytest.approx(float(bayes.log_evidence()), rel=1e-12)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_files(structure, tmp_path):
    bayes, model, x, _ = fitted("residual", structure, prior_variance=0.3)
    bayes.save(tmp_path / "all.safetensors")
    again = bb.Laplace.load(tmp_path / "all.safetensors", copy.deepcopy(model))
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    assert torch.equal(again.log_evidence(), bayes.log_evidence())
    frozen = copy.deepcopy(model).requires_grad_(False)
    assert torch.equal(
        bb.Laplace.load(tmp_path / "all.safetensors", frozen).predict_proba(x), bayes.predict_proba(x)
    )
    with pytest.raises(FileError, match="other weights"):
        bb.Laplace.load(tmp_path / "all.safetensors", dense.case("residual")[0])


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("name", ["convnet", "one logit"])
def test_without_prior_variance_it_is_the_plain_network(name, structure):
    bayes, model, x, _ = fitted(name, structure, prior_variance=1e-14)
    plain = model(x).detach()
    plain = plain.softmax(1) if plain.shape[1] > 1 else torch.cat([(-plain).sigmoid(), plain.sigmoid()], 1)
    methods = ("probit", "mc", "weights", "quadrature" if name == "one logit" else "pairwise")
    for method in methods:
        close(bayes.predict_proba(x, method=method), plain, 1e-5)  # deviations of 1e-7 times derivatives


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_one_logit_keeps_the_decision_boundary_and_confidence_falls_with_the_prior_variance(structure):
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
    """The paper's toy: a network with two hidden layers of 20 units, trained on two moons."""
    torch.manual_seed(0)
    x, y = bb.data.two_moons()
    x = x.double()
    model = bb.networks.MLP((2, 20, 20, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=1e-4)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.double()).backward()
        optimizer.step()
    assert float(((model(x)[:, 0] > 0) == y).double().mean()) > 0.97
    return model.eval(), x, y


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_on_the_papers_toy_confidence_falls_with_the_prior_variance_and_labels_stay(moons, structure):
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
    # Far away, where the plain network is sure of everything, hardly anything is left of it.
    assert float(torch.maximum(plain, 1 - plain)[-len(grid) :].mean()) > 0.99
    assert float(last[-len(grid) :].mean()) < 0.6


def test_drop_in_and_batches_agree():
    bayes, _, x, _ = fitted("convnet", "kron", predictive="pairwise")
    probabilities = bayes.predict_proba(x)
    close(bayes(x).softmax(1), probabilities, 1e-12)
    close(bayes.predict_proba([x[:5], (x[5:], torch.zeros(7))]), probabilities, 1e-12)
    one, _, x, _ = fitted("one logit", "kron")
    assert one(x).shape == (12, 1)
    close(one(x).sigmoid()[:, 0], one.predict_proba(x)[:, 1], 1e-12)


def test_the_drop_in_is_differentiable_through_its_mean():
    bayes, model, x, _ = fitted("one logit", "kron")
    x.requires_grad_()
    (ours,) = torch.autograd.grad(bayes(x).sum(), x)
    (plain,) = torch.autograd.grad(model(x).sum(), x)
    shrink = 1 / (1 + math.pi / 8 * bayes.logits(x).covariance[:, 0, 0]).sqrt()  # probit
    close(ours, plain * shrink[:, None], 1e-10)


def test_weights_are_averaged_over_the_sampled_networks():
    bayes, model, x, _ = fitted("convnet", "diag", prior_variance=0.1)
    draws = bayes.sample(7, generator=torch.Generator().manual_seed(3))
    networks = [{name: each[s] for name, each in draws.items()} for s in range(7)]
    expected = torch.stack([functional_call(model, each, (x,)).softmax(1) for each in networks]).mean(0)
    seeded = {"method": "weights", "samples": 7}
    close(bayes.predict_proba(x, generator=torch.Generator().manual_seed(3), **seeded), expected, 1e-12)
    # The same networks for all batches.
    parts = bayes.predict_proba(list(x.split(5)), generator=torch.Generator().manual_seed(3), **seeded)
    close(parts, expected, 1e-12)


def test_the_model_is_given_back_in_its_mode():
    model, x, y = dense.case("convnet")
    model.train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    bayes = bb.Laplace(model, layers="all").fit(loader(x, y))
    for job in (bayes.logits, bayes.predict_proba, bayes, lambda x: bayes.predict_proba(x, method="weights")):
        job(x)
        assert [module.training for module in model.modules()] == modes
    before = copy.deepcopy(model.state_dict())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_half_precision_networks(structure, dtype):
    model, x, y = dense.case("convnet", dtype=torch.float32)
    model = model.to(dtype)
    exact = copy.deepcopy(model).double()
    low = bb.Laplace(model, layers="all", structure=structure).fit(loader(x.to(dtype), y))
    high = bb.Laplace(exact, layers="all", structure=structure).fit(loader(x.to(dtype).double(), y))
    gaussian = low.logits(x.to(dtype))
    assert (
        gaussian.mean.dtype
        == gaussian.covariance.dtype
        == low.predict_proba(x.to(dtype)).dtype
        == torch.float32
    )
    close(
        gaussian.covariance.double(), high.logits(x.to(dtype).double()).covariance, 1e-3
    )  # float32 derivatives
    assert all(each.dtype == dtype for each in low.sample(2).values())
    assert low.predict_proba(x.to(dtype), method="weights").isfinite().all()


def test_float32_is_float64_rounded():
    model, x, y = dense.case("residual", dtype=torch.float32)
    low = bb.Laplace(model, layers="all").fit(loader(x, y)).logits(x)
    high = (
        bb.Laplace(copy.deepcopy(model).double(), layers="all").fit(loader(x.double(), y)).logits(x.double())
    )
    close(low.covariance.double(), high.covariance, 1e-4)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("method", ["probit", "pairwise", "mc"])
def test_far_away_nothing_overflows(structure, method):
    model, x, y = dense.case("mlp", dtype=torch.float32)
    model[1] = nn.ReLU()
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=10.0).fit(loader(x, y))
    far = []
    for size in (1e8, 1e30):
        generator = torch.Generator().manual_seed(0)
        far.append(bayes.predict_proba(size * x, method=method, generator=generator))
    assert bool(far[1].isfinite().all())
    # ReLU networks are homogeneous far away: the limit has been reached long before 1e30.
    assert float((far[0] - far[1]).abs().max()) < 1e-3
