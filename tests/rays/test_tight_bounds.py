"""The tight bounds: against numerical maximisation, attained, and never below a confidence."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import jacrev

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError
from bitbayes.model import DenseJacobian, differentiate
from bitbayes.prior import Prior
from bitbayes.rays.all_layers_bounds import head_bound
from bitbayes.toys import MLP
from ray_cases import kron_factors, laplace, slopes
from reference import KAPPA, STRUCTURES, covariance

METHODS = [(1, "probit"), (1, "quadrature"), (2, "pairwise"), (2, "meanfield"), (2, "probit")]
METHODS += [(4, "pairwise"), (4, "probit"), (4, "meanfield")]
PRIOR, TEMPERATURE = 3.0, 0.6


def head(k, structure, method, bias=True, prior_variance=PRIOR, seed=0, width=4):
    """A last layer on features that are the inputs themselves, so that any features can be asked for."""
    torch.manual_seed(seed)
    model = nn.Linear(width, k, bias=bias).double()
    x, labels = torch.randn(30, width, dtype=torch.float64) + 0.5, torch.arange(30) % max(k, 2)
    bayes = bb.Laplace(model, predictive=method, prior_variance=prior_variance, structure=structure)
    return bayes.fit([(x, labels)]), x, labels


def parts(bayes, x, labels):
    """μ (k, D) and Σ (kD, kD), by dense matrices."""
    model = bayes.model
    weights, features = model.weight.detach(), x
    if model.bias is not None:
        weights = torch.cat([weights, model.bias.detach()[:, None]], 1)
        features = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    return weights, covariance(bayes.structure, weights, features, labels, bayes.prior_variance)


def largest_ratio(mean, variance):
    """max over φ of |gᵀφ|/√(φᵀSφ), by gradient ascent."""
    phi = torch.linspace(0.3, 1.2, len(mean), dtype=torch.float64, requires_grad=True)
    steps = torch.optim.LBFGS([phi], 0.5, max_iter=400, tolerance_grad=1e-12, tolerance_change=1e-15)

    def loss():
        steps.zero_grad()
        value = -(mean @ phi).square().log() + (phi @ variance @ phi).log()
        value.backward()
        return value

    with torch.enable_grad():
        steps.step(loss)
        return (-loss() / 2).exp().detach()


def plain_bound(means, covariance_of, method):
    """The bound from means (k, D) of each logit; covariance_of(c) (D, D) is that of a combination c."""
    k = len(means)
    one = torch.eye(k, dtype=torch.float64)
    if k == 1:
        ratio = largest_ratio(means[0], covariance_of(one[0]))
        return torch.special.ndtr(ratio) if method == "quadrature" else (ratio / KAPPA**0.5).sigmoid()
    pairs = [(i, j) for i in range(k) for j in range(k) if i != j]
    z = torch.zeros(k, k, dtype=torch.float64)
    if method == "meanfield":
        mean_variance = sum(covariance_of(one[i] - one[j]) for i, j in pairs) / len(pairs)
    for i, j in pairs:
        variance = mean_variance if method == "meanfield" else covariance_of(one[i] - one[j])
        z[i, j] = largest_ratio(means[i] - means[j], variance) / KAPPA**0.5
    if method == "meanfield":
        return (1 / (-z).exp().sum(1)).amax()
    low, high = 1 / z.exp().sum(1), 1 / (-z).exp().sum(1)
    if method == "probit":
        centred = [largest_ratio(c @ means, covariance_of(c)) / KAPPA**0.5 for c in one - 1 / k]
        high = torch.stack(centred).exp()
        low = 1 / high
    return torch.stack([high[i] / (high[i] + low.sum() - low[i]) for i in range(k)]).amax()


def of_rows(sigma, k):
    """c ↦ the covariance of Σᵢ cᵢwᵢ, from Σ (kD, kD)."""
    blocks = sigma.reshape(k, len(sigma) // k, k, len(sigma) // k)
    return lambda c: torch.einsum("i,iajb,j->ab", c, blocks, c)


# ---- the last layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("k, method", METHODS)
def test_the_bound_is_that_of_a_numerical_maximisation(k, method, structure, bias):
    bayes, x, labels = head(k, structure, method, bias)
    bayes.temperature = TEMPERATURE
    weights, sigma = parts(bayes, x, labels)
    expected = plain_bound(weights / TEMPERATURE, of_rows(sigma, k), method)
    # The maximum of a smooth function: an error e in φ makes one of e² in the ratio.
    torch.testing.assert_close(bayes.bound(), expected, rtol=1e-9, atol=0)


@given(
    case=st.sampled_from([case for case in METHODS if case[0] < 3 and case != (2, "probit")]),
    structure=st.sampled_from(STRUCTURES),
    prior_variance=st.floats(1e-2, 1e6),
    temperature=st.floats(0.1, 10),
    seed=st.integers(0, 10_000),
)
def test_one_logit_or_one_difference_attains_the_bound(case, structure, prior_variance, temperature, seed):
    """Along t·S⁻¹g; without a bias, whose feature cannot grow with the others."""
    k, method = case
    bayes, x, labels = head(k, structure, method, False, prior_variance, seed)
    bayes.temperature = temperature
    weights, sigma = parts(bayes, x, labels)
    c = torch.tensor([1.0, -1.0][:k], dtype=torch.float64)
    direction = torch.linalg.solve(of_rows(sigma, k)(c), c @ weights)
    confidence = bayes.limit(direction[None]).confidence[0]
    torch.testing.assert_close(confidence, bayes.bound(), rtol=1e-9, atol=0)


@given(
    case=st.sampled_from(METHODS),
    structure=st.sampled_from(STRUCTURES),
    bias=st.booleans(),
    prior_variance=st.floats(1e-2, 1e6),
    temperature=st.floats(1e-2, 1e2),
    seed=st.integers(0, 10_000),
)
def test_no_features_exceed_the_bound_and_it_never_exceeds_the_theorems(
    case, structure, bias, prior_variance, temperature, seed
):
    k, method = case
    bayes, x, labels = head(k, structure, method, bias, prior_variance, seed)
    bayes.temperature = temperature
    bound = bayes.bound()
    assert 1 / max(k, 2) <= bound <= bayes.bound(form="theorem") + 1e-12
    weights, sigma = parts(bayes, x, labels)
    c = torch.randn(20, k, dtype=torch.float64)
    c = c if k == 1 else c - c.mean(1, keepdim=True)
    worst = torch.stack([torch.linalg.solve(of_rows(sigma, k)(each), each @ weights) for each in c])
    if bias:  # the features whose 1 for the bias is in the right proportion
        worst = worst[:, :-1] / worst[:, -1:]
    features = torch.cat([worst, -worst, torch.randn(100, 4, dtype=torch.float64)])
    for size in (1e-3, 1.0, 1e3, 1e9):
        assert bayes.predict_proba(size * features).amax() <= bound + 1e-12


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("structure", ["full", "kron"])
def test_the_bound_is_right_where_precisions_differ_by_fifteen_orders(structure, k):
    """σ₀² = 1e12 and features of 1e3: of Σ's smallest eigenvalues an inverse by S would leave nothing."""
    torch.manual_seed(0)
    model = nn.Linear(3, k, bias=False).double()
    with torch.no_grad():
        model.weight *= 1e-3
    x = 1e3 * torch.randn(20, 3, dtype=torch.float64)
    x[:, 2] = x[:, 0]  # a direction without any curvature
    bayes = bb.Laplace(model, structure=structure, prior_variance=1e12).fit([(x, torch.arange(20) % 2)])
    p = bayes.model(x).detach().sigmoid()[:, 0] if k == 1 else bayes.model(x).detach().softmax(1)[:, 0]
    hessian = (x * (p * (1 - p))[:, None]).T @ x  # of the logit, or of the difference of two
    if structure == "kron":
        hessian = (p * (1 - p)).mean() * x.T @ x
    g = model.weight.detach()[0] if k == 1 else model.weight.detach()[0] - model.weight.detach()[1]
    # The difference of two logits has twice the prior's variance, and the curvature of one logit.
    precision = hessian + torch.eye(3, dtype=torch.float64) * (1e-12 / k)
    expected = ((g @ precision @ g) / KAPPA).sqrt().sigmoid()
    torch.testing.assert_close(bayes.bound(), expected, rtol=1e-10, atol=0)


def test_forms():
    bayes, _, _ = head(3, "kron", "pairwise")
    assert torch.equal(bayes.bound(), bayes.bound(form="tight")) and bayes.bound() < bayes.bound(
        form="theorem"
    )
    with pytest.raises(ArgumentError, match="form='loose' is not known: choose one of 'tight', 'theorem'"):
        bayes.bound(form="loose")


@pytest.mark.parametrize("method, numbers", [("pairwise", 4 * 3 // 2 * 5), ("probit", 20), ("meanfield", 20)])
def test_with_too_many_combinations_the_bound_is_the_theorems(method, numbers, monkeypatch):
    bayes, _, _ = head(4, "kron", method)
    theorem = bayes.bound(form="theorem")
    monkeypatch.setattr("bitbayes.rays.bounds.MAX_COMBINATION_NUMBERS", numbers)
    assert bayes.bound() < theorem
    monkeypatch.setattr("bitbayes.rays.bounds.MAX_COMBINATION_NUMBERS", numbers - 1)
    assert torch.equal(bayes.bound(), theorem)


# ---- all layers


def network(k, structure, method, prior_variance=PRIOR, seed=0):
    torch.manual_seed(seed)
    model = MLP((3, 6, 4, k)).double()
    x, labels = 2 * torch.randn(25, 3, dtype=torch.float64), torch.arange(25) % max(k, 2)
    given = {"structure": structure, "predictive": method, "prior_variance": prior_variance}
    return bb.Laplace(model, layers="all", **given).fit([(x, labels)]), x, labels


def dense_covariance(structure, model, x, labels):
    """Σ (P, P) in the order of `named_parameters`."""
    if structure != "kron":
        return dense.covariance(structure, model, x, labels, PRIOR)
    blocks = []
    for a, b in kron_factors(model, x, labels):
        h = torch.kron(b, a) / len(x)
        order = torch.arange(len(h)).reshape(len(b), -1)  # each output's weights, then its bias
        order = torch.cat([order[:, :-1].flatten(), order[:, -1]])
        blocks.append(torch.linalg.inv(h + torch.eye(len(h)) / PRIOR)[order][:, order])
    return torch.block_diag(*blocks)


def given_others(sigma, model):
    """Σ of the last layer's weights given all others, (kD, kD), class by class with the bias last."""
    k, width = model[-1].weight.shape
    own = torch.linalg.inv(torch.linalg.inv(sigma)[-k * (width + 1) :, -k * (width + 1) :])
    order = torch.cat([torch.arange(k * width).reshape(k, width), k * width + torch.arange(k)[:, None]], 1)
    return own[order.flatten()][:, order.flatten()]


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("k, method", [(1, "probit"), (1, "quadrature"), (3, "pairwise"), (3, "meanfield")])
def test_the_bound_over_all_layers_is_that_of_a_numerical_maximisation(structure, k, method):
    bayes, x, labels = network(k, structure, method)
    bayes.temperature = TEMPERATURE
    model, rays = bayes.model, torch.randn(4, 3, dtype=torch.float64)
    rays[0, 1] = 0  # one number that is 0 does not make a ray a point
    with torch.no_grad():
        sigma = dense_covariance(structure, model, x, labels)
        weights = torch.cat([model[-1].weight, model[-1].bias[:, None]], 1) / TEMPERATURE
        every = plain_bound(weights, of_rows(given_others(sigma, model), k), method)
    expected = []
    for ray in rays:
        product, own = slopes(model, ray), dense.parameters(model)
        u = product(own).detach() / TEMPERATURE
        j = torch.cat([each.flatten(2) for each in jacrev(product)(own).values()], dim=2).detach()

        def covariance_of(c, j=j):
            along = torch.einsum("k,kdp->dp", c, j)
            return along @ sigma @ along.T

        expected.append(torch.minimum(plain_bound(u, covariance_of, method), every))
    found = bayes.bound(rays)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-7, atol=0)
    assert bool((found < every - 1e-3).any())  # both bounds take part in this test
    dead = torch.zeros_like(rays[:1])
    torch.testing.assert_close(bayes.bound(dead)[0], every, rtol=1e-7, atol=0)


@pytest.mark.parametrize("name", ["residual", "sequence"])
def test_dense_and_factored_derivatives_have_one_covariance(name):
    """These networks have convolutions with groups, with and without a bias."""
    bayes, model, x, _ = dense.fitted(name, "kron")
    network = bayes.posterior._network(x.device, x.dtype)
    _, found = differentiate(model.eval(), network.layers, x, lambda f: torch.eye(3).expand(len(f), -1, -1))
    factored = {each.layer.name: each.jacobian() for each in found}
    full = {name: DenseJacobian(each.dense()) for name, each in factored.items()}
    grams = [
        network.gram(lambda layer, given=given: given[layer.name], [Prior(PRIOR)])
        for given in (factored, full)
    ]
    dense.close(*grams, tolerance=1e-12)


@given(
    case=st.sampled_from(METHODS),
    structure=st.sampled_from(["full", "kron", "diag"]),
    prior_variance=st.floats(1e-3, 1e4),
    temperature=st.floats(1e-2, 1e2),
    seed=st.integers(0, 10_000),
)
def test_no_limit_exceeds_the_bound_over_all_layers_which_never_exceeds_the_theorems(
    case, structure, prior_variance, temperature, seed
):
    k, method = case
    bayes, x, _ = network(k, structure, method, prior_variance, seed)
    bayes.temperature = temperature
    bound = bayes.bound(x[:5])
    assert bool((bayes.limit(x[:5]).confidence <= bound + 1e-12).all())
    assert bool((bound <= bayes.bound(x[:5], form="theorem") + 1e-12).all())


@pytest.mark.parametrize("structure", ["kron", "diag"])
@pytest.mark.parametrize("name", ["convnet", "residual"])
def test_behind_max_pooling_the_last_layer_given_all_others_bounds_every_prediction(name, structure):
    """The theorem's is 1 on all of these rays. J is singular on some, and at x = 0 means nothing."""
    bayes, x = laplace(name, 3, n=6, layers="all", structure=structure, prior_variance=1.0)
    every = bayes.bound(0 * x[:1])[0]
    assert every < 0.9
    for size in (0, 1e-2, 1.0, 1e2, 1e6):
        assert bayes.predict_proba(size * x).amax() <= every + 1e-12
    bound = bayes.bound(x)
    assert bool((bayes.bound(x, form="theorem") == 1).all()) and bool((bound <= every).all())
    assert bool((bayes.limit(x).confidence <= bound + 1e-12).all())


def test_where_j_is_too_large_the_bound_is_that_of_the_last_layer(monkeypatch):
    bayes, x, _ = network(3, "kron", "pairwise")
    every = bayes.bound(0 * x[:1])
    monkeypatch.setattr("bitbayes.rays.all_layers_bounds.MAX_JACOBIAN_NUMBERS", 100)
    assert torch.equal(bayes.bound(x), every.expand(len(x)))


class Twice(nn.Module):
    """A network whose last layer is also its first."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.relu(self.head(x)))


def test_the_last_layer_bounds_nothing_where_it_is_certain_or_called_twice():
    def known(model):
        torch.manual_seed(0)
        x = torch.randn(20, 3, dtype=torch.float64)
        bayes = bb.Laplace(model.double(), layers="all", structure="diag").fit([(x, torch.arange(20) % 3)])
        exact = bayes.posterior._exact(bayes._prior)
        return head_bound(exact, x, 1.0, "pairwise") is not None

    assert known(MLP((3, 4, 3)))
    assert not known(Twice())
    for part in ("weight", "bias"):
        model = MLP((3, 4, 3))
        getattr(model[-1], part).requires_grad_(False)
        assert not known(model)


# ---- with the residual


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("form", ["tight", "theorem"])
def test_the_bound_at_zero_with_a_residual_is_that_without(layers, form):
    """The ray of x = 0 is a point, and at it the network may be sure."""
    bayes, x = laplace("mlp", 3, n=8, layers=layers, residual=True, prior_variance=1e-4)
    zero = torch.zeros_like(x[:1])
    bayes.temperature = 0.01
    confidence = bayes.predict_proba(zero).amax()
    assert confidence > 0.5
    mixed = bayes.bound(torch.cat([x, zero]), form=form)
    plain, _ = laplace("mlp", 3, n=8, layers=layers, residual=False, prior_variance=1e-4)
    plain.temperature = 0.01
    if layers == "last":
        assert mixed == plain.bound(form=form) and bayes.bound(x, form=form) == 1 / 3
        assert bayes.bound(form=form) == 1 / 3
    else:
        assert bool((mixed[:-1] == 1 / 3).all()) and mixed[-1] == plain.bound(zero, form=form)[0]
    assert mixed.amax() >= confidence
