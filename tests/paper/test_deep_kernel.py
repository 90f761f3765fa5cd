"""Deep kernel learning against GPyTorch's own marginals and divergences, and against plain loops."""

import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from bitbayes.errors import ArgumentError, NotFittedError
from interrupted import interrupted
from paper.deep_kernel import GRID_LIMIT, DeepKernel
from paper.training import Recipe, checkpoint

SHORT = Recipe(epochs=4, learning_rate=0.02)


def network(features=3, classes=3, inputs=2):
    return nn.Sequential(nn.Linear(inputs, features), nn.ReLU(), nn.Linear(features, classes))


def points(n=60, classes=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, 2, generator=generator)
    return x, (x[:, 0] * classes).long()


def loader(n=60):
    return DataLoader(TensorDataset(*points(n)), batch_size=30)


def kernel(features=3):
    """In float64, away from the prior in every parameter."""
    torch.manual_seed(3)
    bayes = DeepKernel(network(features).double())
    nn.init.ones_(bayes.model[0].bias)  # no feature is zero at every point
    with torch.no_grad():
        q = bayes.gp.variational_strategy.base_variational_strategy._variational_distribution
        q.variational_mean.add_(torch.randn_like(q.variational_mean))
        q.chol_variational_covar.add_(0.1 * torch.randn_like(q.chol_variational_covar))
        bayes.softmax.mixing_weights.normal_()
        bayes.gp.mean_module.constant.fill_(0.3)
    bayes.gp.covar_module.outputscale = 1.7
    bayes.gp.covar_module.base_kernel.lengthscale = 3.1  # outside its box, so that its prior has a slope
    bayes.bounds.copy_(torch.tensor([-0.5, 2.0]))
    return bayes


def gpytorchs_marginals(bayes, features):
    """Mean and variance (n, d) by GPyTorch, on features that its own module scaled and clamped."""
    from gpytorch.utils.grid import ScaleToBounds

    scale = ScaleToBounds(-GRID_LIMIT, GRID_LIMIT).double().eval()
    scale.min_val, scale.max_val = bayes.bounds
    found = bayes.gp.eval()(scale(features).T[:, :, None])
    return found.mean, found.variance


def test_marginals_are_gpytorchs():
    bayes, features = kernel(), torch.randn(40, 3).double() + 0.7  # some beyond the bounds
    assert ((features < -0.5) | (features > 2)).any() and ((features > -0.5) & (features < 2)).any()
    found = bayes.marginals(features, bayes.bounds)
    for ours, theirs in zip(found, gpytorchs_marginals(bayes, features), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    probe = torch.randn(40, 3).double()
    gradients = [
        torch.autograd.grad((probe * (mean + variance)).sum(), list(bayes.gp.variational_parameters()))
        for mean, variance in (found, gpytorchs_marginals(bayes, features))
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-8)


def test_the_divergence_from_the_prior_is_gpytorchs():
    bayes = kernel()
    parameters = [*bayes.gp.variational_parameters(), *bayes.gp.hyperparameters()]
    ours, theirs = bayes.kl(), bayes.gp.variational_strategy.kl_divergence()
    # K's condition number is below 1e6, so float64 keeps nine digits.
    assert torch.allclose(ours, theirs, rtol=1e-9)
    for a, b in zip(
        torch.autograd.grad(ours, parameters), torch.autograd.grad(theirs, parameters), strict=True
    ):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-6)


def test_a_fresh_q_is_the_prior():
    bayes = DeepKernel(network().double())
    # Only its means differ: by noise of 1e-3 on each, against a smallest prior variance of 1e-3.
    assert 0 < bayes.kl() < 0.5


def test_the_loss_is_its_formula():
    bayes, (x, y) = kernel(), points(8)
    x, noise = x.double(), torch.randn(5, 8, 3).double()
    features = bayes.features(x).detach()
    loss = bayes.loss(x, y, noise, 1 / 50)
    assert bayes.bounds.equal(torch.stack([features.min(), features.max()]))
    mean, variance = gpytorchs_marginals(bayes, features)
    expected = torch.zeros(()).double()
    for s in range(5):
        for n in range(8):
            logits = bayes.softmax.mixing_weights @ (mean[n] + variance[n].sqrt() * noise[s, n])
            expected -= logits.log_softmax(0)[y[n]] / 40
    _, kl, prior = gpytorchs_elbo(bayes, features, y, 50)
    assert torch.allclose(loss, expected + kl - prior, rtol=1e-8)


def test_the_loss_is_gpytorchs_bound():
    bayes, (x, y) = kernel(), points(8)
    x = x.double()
    noise = torch.randn(4000, 8, 3).double()
    with torch.no_grad():
        loss = bayes.loss(x, y, noise, 1 / 50)
        likelihood, kl, prior = gpytorchs_elbo(bayes, bayes.features(x), y, 50)
        mean, variance = bayes.marginals(bayes.features(x), bayes.bounds)
        draws = (mean + variance.sqrt() * noise) @ bayes.softmax.mixing_weights.T
        spread = draws.log_softmax(2)[:, torch.arange(8), y].mean(1).std()
    # Two averages over 4,000 draws: five standard errors of their difference.
    assert abs(loss - (kl - likelihood - prior)) < 5 * spread * (2 / 4000) ** 0.5


def gpytorchs_elbo(bayes, features, y, points):
    """Expected log-likelihood (4,000 draws), Σ KL and log prior, each divided by the number of points."""
    import gpytorch

    scale = gpytorch.utils.grid.ScaleToBounds(-GRID_LIMIT, GRID_LIMIT).double().train()
    elbo = gpytorch.mlls.VariationalELBO(bayes.softmax, bayes.gp, points, combine_terms=False)
    elbo.train()
    with gpytorch.settings.num_likelihood_samples(4000):
        return elbo(bayes.gp(scale(features).T[:, :, None]), y)


def test_probabilities_are_a_plain_average_over_the_marginals():
    bayes = kernel()
    x = points(20)[0].double()
    with torch.no_grad():
        mean, variance = gpytorchs_marginals(bayes, bayes.features(x))
        found = bayes.predict_proba(x, samples=7, generator=torch.Generator().manual_seed(5))
        noise = torch.randn(7, 20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        expected = torch.zeros(20, 3).double()
        for s in range(7):
            values = mean + variance.sqrt() * noise[s]
            expected += (values @ bayes.softmax.mixing_weights.T).softmax(1) / 7
        assert torch.allclose(found, expected, rtol=1e-9)

        # Logits are Gaussian too, with covariance W diag(variance) Wᵀ: other random numbers, same average.
        found = bayes.predict_proba(x, samples=20_000)
        mixing = bayes.softmax.mixing_weights
        covariance = torch.einsum("id,nd,jd->nij", mixing, variance, mixing)
        logits = torch.distributions.MultivariateNormal(mean @ mixing.T, covariance).sample((20_000,))
    # A probability's standard deviation is at most 1/2: five standard errors of a difference.
    assert (found - logits.softmax(2).mean(0)).abs().max() < 5 * 0.5 * (2 / 20_000) ** 0.5


def test_it_learns():
    torch.manual_seed(0)
    x, y = points(400)
    bayes = DeepKernel(network(8))
    assert bayes.fit([(x, y)], recipe=Recipe(epochs=150, learning_rate=0.05)) is bayes
    probs = bayes.predict_proba(x)
    assert (probs.argmax(1) == y).double().mean() > 0.9 and bayes.losses[-1] < 0.5 * bayes.losses[0]
    assert torch.allclose(probs.sum(1), torch.ones(400), atol=1e-6) and probs.min() >= 0
    parts = bayes.predict_proba(list(x.split(100)), samples=500)
    assert torch.allclose(parts, bayes.predict_proba(x, samples=500), atol=5 * 0.5 * (2 / 500) ** 0.5)
    dropped_in = bayes(x).softmax(1).argmax(1)
    assert (dropped_in == probs.argmax(1)).double().mean() > 0.9
    # Beyond the range of training everything is at the edge of the grid.
    far = bayes.predict_proba(torch.tensor([[1e30, 1e30], [1e31, 1e31]]), samples=2000)
    assert far.isfinite().all() and torch.allclose(far[0], far[1], atol=5 * 0.5 * (2 / 2000) ** 0.5)


def test_the_same_seed_gives_the_same_network():
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        bayes = DeepKernel(network()).fit(loader(), recipe=SHORT, seed=seed)
        made.append(bayes.predict_proba(points()[0], generator=torch.Generator().manual_seed(0)))
    assert made[0].equal(made[1]) and not made[0].equal(made[2])
    first, again = (bayes.predict_proba(points()[0]) for _ in range(2))
    assert not first.equal(again)  # other draws, unless a generator says otherwise


def test_all_is_trained_but_the_head_and_the_network_alone_decays():
    torch.manual_seed(0)
    bayes = DeepKernel(network())
    before = {name: value.clone() for name, value in bayes.state_dict().items()}
    bayes.model[1].eval()
    bayes.fit(loader(), recipe=SHORT)
    moved = {
        name
        for name, value in bayes.named_parameters()
        if not torch.equal(value, before[name]) and not name.startswith("model.2")
    }
    assert moved == {name for name, _ in bayes.named_parameters() if not name.startswith("model.2")}
    assert torch.equal(bayes.model[2].weight, before["model.2.weight"])
    assert bayes.model.training and not bayes.model[1].training

    groups = bayes._optimizer(SHORT).param_groups
    assert [group["weight_decay"] for group in groups] == [SHORT.weight_decay, 0.0, 0.0]
    assert len(groups[0]["params"]) == 2 and sum(len(group["params"]) for group in groups) == len(moved)
    # The kernel is a hundred times slower: Adam's steps are at most about the learning rate.
    constant = bayes.gp.mean_module.constant.item()
    assert 0 < abs(constant) < 8 * 1.5 * 0.01 * SHORT.learning_rate


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    data = [tuple(part) for part in DataLoader(TensorDataset(*points()), batch_size=20)]
    part = tmp_path / "net.part"

    def start():
        torch.manual_seed(0)
        return DeepKernel(network())

    whole = start().fit(data, recipe=SHORT)
    with interrupted(monkeypatch, after=2):
        start().fit(data, recipe=SHORT, checkpoint_file=part)
    again = start().fit(data, recipe=SHORT, checkpoint_file=part)
    assert again.losses == whole.losses
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), whole.parameters(), strict=True))


class NothingFetched(TorchDispatchMode):
    """Raises where a value of a tensor is asked for: on a GPU that waits, and cannot be recorded."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        fetching = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select")
        assert function.overloadpacket.__name__ not in fetching, f"{function} fetches a value"
        return function(*args, **(kwargs or {}))


def test_a_step_fetches_no_value():
    bayes, (x, y) = kernel(), points(8)
    with NothingFetched():
        bayes.loss(x.double(), y, torch.randn(5, 8, 3).double(), 1 / 50).backward()
    with pytest.raises(AssertionError, match="fetches a value"), NothingFetched():
        bayes.gp(bayes.features(x.double()).clamp(-9, 9).T[:, :, None])  # GPyTorch's own does


def test_without_gpytorch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(ArgumentError, match="extra 'paper'"):
        DeepKernel(network())


def test_predictions_before_a_fit_are_refused():
    bayes = DeepKernel(network())
    for ask in (bayes, bayes.predict_proba):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            ask(points()[0])
