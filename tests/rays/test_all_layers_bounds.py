"""The all-layer theorem's bound: against products of masked weights, and never below a limit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, jacrev

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import likelihood_for
from bitbayes.prior import Prior
from bitbayes.rays import BoundRequest
from bitbayes.rays.all_layers_bounds import head_bound
from bitbayes.toys import MLP
from ray_cases import kron_factors, laplace, of_rows, plain_bound, slopes
from reference import KAPPA

CASES = [(1, "probit"), (1, "quadrature"), (2, "pairwise"), (2, "probit"), (4, "pairwise"), (4, "probit")]


CASES += [(4, "meanfield")]


STRUCTURES = ("full", "kron", "diag")


PRIOR = 0.5


def fitted(k, structure, method, prior_variance=PRIOR, seed=0, inputs=3):
    torch.manual_seed(seed)
    model = MLP((inputs, 6, 4, k)).double()
    x, labels = 2 * torch.randn(25, inputs, dtype=torch.float64), torch.arange(25) % max(k, 2)
    options = {"structure": structure, "predictive": method, "prior_variance": prior_variance}
    return bb.Laplace(model, layers="all", **options).fit([(x, labels)]), x, labels


def largest_precision(structure, model, x, labels):
    """λ_max(H + I/σ₀²), by dense matrices."""
    if structure != "kron":
        sigma = dense.covariance(structure, model, x, labels, PRIOR)
        return 1 / torch.linalg.eigvalsh(sigma)[0]
    factors = kron_factors(model, x, labels)
    largest = max(torch.linalg.eigvalsh(b)[-1] * torch.linalg.eigvalsh(a)[-1] for a, b in factors)
    return largest / len(x) + 1 / PRIOR


def expected(bayes, structure, x, labels, ray, method):
    """The bound for one ray: the temperature divides u, and not J."""
    model = bayes.model
    product, own = slopes(model, ray), dense.parameters(model)
    u = product(own) / bayes.temperature
    j = torch.cat([each.flatten(2) for each in jacrev(product)(own).values()], dim=2)  # (k, D, P)
    smallest = 1 / largest_precision(structure, model, x, labels)

    def size(c):
        return torch.linalg.svdvals(torch.einsum("k,kdp->dp", c, j))[-1]

    def z(c):
        return (c @ u).norm() / (size(c) * smallest.sqrt())

    k = len(u)
    one = torch.eye(k, dtype=torch.float64)
    if k == 1:
        ratio = z(one[0])
        return torch.special.ndtr(ratio) if method == "quadrature" else (ratio / KAPPA**0.5).sigmoid()
    if method == "probit":
        ratios = torch.stack([z(c) for c in one - 1 / k]) / KAPPA**0.5
        low, high = -ratios, ratios
    elif method == "meanfield":
        shared = 2 / (k - 1) * sum(size(c).square() for c in one - 1 / k) * smallest
        high = torch.stack([(c @ u).norm() for c in one - 1 / k]) / (KAPPA * shared).sqrt()
        low = -high
    else:
        ratios = torch.zeros(k, k, dtype=torch.float64)
        for i in range(k):
            for other in range(i + 1, k):
                ratios[i, other] = ratios[other, i] = z(one[i] - one[other]) / KAPPA**0.5
        low, high = -torch.logsumexp(ratios, 1), -torch.logsumexp(-ratios, 1)
    # The largest share of class i: its own score at its highest, those of all others at their lowest.
    shares = [
        high[i].exp() / (high[i].exp() + sum(low[j].exp() for j in range(k) if j != i)) for i in range(k)
    ]
    return torch.stack(shares).amax()


@pytest.mark.parametrize("structure, temperature", [*zip(STRUCTURES, (1.0, 3.0, 0.5), strict=True)])
@pytest.mark.parametrize("k, method", CASES)
def test_the_bound_over_all_layers_is_the_theorems(structure, k, method, temperature):
    bayes, x, labels = fitted(k, structure, method)
    bayes.temperature = temperature
    rays = torch.randn(3, 3, dtype=torch.float64)
    with torch.no_grad():
        plain = torch.stack([expected(bayes, structure, x, labels, ray, method) for ray in rays])
    plain = plain.nan_to_num(nan=1.0)  # a ray on which every unit dies: J is 0
    bound = bayes.bound(rays, form="theorem")
    assert bound.shape == (3,) and bound.dtype == torch.float64
    torch.testing.assert_close(bound, plain, rtol=0, atol=1e-7)
    assert bool((bayes.limit(rays).confidence <= bound).all())


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_the_bound_holds_for_layers_without_a_bias_too(structure):
    torch.manual_seed(0)
    model = MLP((3, 6, 4, 3)).double()
    model[2] = nn.Linear(6, 4, bias=False).double()
    x, labels = 2 * torch.randn(25, 3, dtype=torch.float64), torch.arange(25) % 3
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=PRIOR).fit([(x, labels)])
    bayes.predictive = "pairwise"
    with torch.no_grad():
        plain = torch.stack([expected(bayes, structure, x, labels, ray, "pairwise") for ray in x[:3]])
    plain = plain.nan_to_num(nan=1.0)  # a ray on which every unit dies: J is 0
    assert bool((plain < 1).any())
    torch.testing.assert_close(bayes.bound(x[:3], form="theorem"), plain, rtol=0, atol=1e-7)


@given(
    case=st.sampled_from(CASES),
    structure=st.sampled_from(STRUCTURES),
    prior_variance=st.floats(1e-3, 1e4),
    temperature=st.floats(1e-2, 1e2),
    inputs=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
def test_no_limit_over_all_layers_exceeds_the_bound(
    case, structure, prior_variance, temperature, inputs, seed
):
    k, method = case
    bayes, x, _ = fitted(k, structure, method, prior_variance, seed, inputs)
    bayes.temperature = temperature
    bound = bayes.bound(x[:3])
    assert bool((bayes.limit(x[:3]).confidence <= bound + 1e-12).all())
    assert bool((bound <= 1).all())


@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_bounds_of_networks_with_pooling_and_batch_norm(structure):
    """Max pooling drops pixels that the logits then do not depend on. So J is singular, the bound 1."""
    for name in ("convnet", "residual"):
        bayes, x = laplace(name, 3, n=6, layers="all", structure=structure)
        assert bool((bayes.bound(x, form="theorem") == 1).all())
    bayes, x = laplace("mlp with batch norm", 3, n=6, layers="all", structure=structure)
    bound = bayes.bound(x, form="theorem")
    assert bool((bound < 1).all()) and bool((bayes.limit(x).confidence <= bound).all())


class Squeezed(nn.Module):
    """A network whose output has no axes of length one."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return self.inside(x).squeeze()


@pytest.mark.parametrize("k", [1, 3])
def test_the_bound_of_an_output_whose_axes_are_squeezed_away_is_the_same(k):
    plain, x, labels = fitted(k, "diag", "probit")
    bayes = bb.Laplace(Squeezed(plain.model), layers="all", structure="diag", predictive="probit")
    bayes.fit([(x, labels)])
    bayes.prior_variance = PRIOR
    expected = plain.bound(x[:3], form="theorem")
    torch.testing.assert_close(bayes.bound(x[:3], form="theorem"), expected, rtol=1e-10, atol=0)


def test_the_bound_is_one_where_j_is_singular():
    """A frozen first layer has no weight for the second input, so u cannot change in that direction."""
    bayes, x, labels = fitted(1, "full", "probit")
    model = bayes.model
    model[0].requires_grad_(False)
    with torch.no_grad():
        model[0].weight[:, 1] = 0
    bayes = bb.Laplace(model, layers="all", structure="full").fit([(x, labels)])
    assert bool((bayes.bound(x, form="theorem") == 1).all())
    dead = MLP((2, 4, 1)).double()
    with torch.no_grad():
        dead[0].weight.copy_(-dead[0].weight.abs() - 0.1)
    rows = torch.randn(10, 2, dtype=torch.float64)
    bayes = bb.Laplace(dead, layers="all").fit([(rows, torch.arange(10) % 2)])
    torch.testing.assert_close(bayes.bound(rows.abs(), form="theorem"), torch.ones(10, dtype=torch.float64))


def test_the_bound_of_a_zero_input_is_one():
    """x = 0: the theorem divides by ‖x‖, and its formula would lie below the prediction at 0."""
    bayes, x, _ = fitted(3, "kron", "pairwise")
    bound = bayes.bound(torch.stack([0 * x[0], x[0]]), form="theorem")
    assert bound[0] == 1 and bound[1] < 1


def test_the_bound_does_not_depend_on_the_size_of_x():
    bayes, x, _ = fitted(1, "kron", "probit")
    torch.testing.assert_close(bayes.bound(x[:5]), bayes.bound(1e6 * x[:5]), rtol=1e-9, atol=0)


def test_a_bound_leaves_a_float32_model_as_it_was():
    bayes, x, labels = fitted(2, "kron", "pairwise")
    single = bb.Laplace(bayes.model.float(), layers="all", prior_variance=PRIOR).fit([(x.float(), labels)])
    state = {name: value.clone() for name, value in single.model.state_dict().items()}
    assert single.bound(x.float()).dtype == torch.float64
    assert all(torch.equal(value, state[name]) for name, value in single.model.state_dict().items())


def test_the_bound_with_a_residual_is_uniform():
    for layers in ("last", "all"):
        bayes, x = laplace("mlp", 3, n=8, layers=layers, residual=True)
        bound = bayes.bound(x)
        assert bound.shape == (() if layers == "last" else (8,))
        assert bool((bound == 1 / 3).all())


def test_bounds_without_inputs_closed_forms_or_memory_raise(monkeypatch):
    bayes, x, _ = fitted(3, "kron", "pairwise")
    with pytest.raises(ArgumentError, match="a bound of its own"):
        bayes.bound()
    bayes.predictive = "bridge"
    with pytest.raises(ArgumentError, match="'bridge'"):
        bayes.bound(x)
    bayes.predictive = "pairwise"
    monkeypatch.setattr("bitbayes.rays.all_layers_bounds.MAX_JACOBIAN_NUMBERS", 100)
    with pytest.raises(ArgumentError, match="too many: use `limit`"):
        bayes.bound(x, form="theorem")


def test_the_bound_of_the_last_layer_is_one_number_for_all_inputs():
    bayes, x = laplace("mlp", 3)
    assert bayes.bound(x) == bayes.bound()


def test_the_references_masked_product_is_the_networks_slope():
    """This checks the reference `slopes` itself."""
    bayes, x, _ = fitted(3, "diag", "pairwise")
    u = slopes(bayes.model, x[0])(dense.parameters(bayes.model))
    far = [functional_call(bayes.model, {}, (scale * x[:1],))[0] for scale in (1e6, 2e6)]
    torch.testing.assert_close(u @ x[0] * 1e6, far[1] - far[0])


METHODS = [(1, "probit"), (1, "quadrature"), (2, "pairwise"), (2, "meanfield"), (2, "probit")]


METHODS += [(4, "pairwise"), (4, "probit"), (4, "meanfield")]


TIGHT_PRIOR, TEMPERATURE = 3.0, 0.6


def network(k, structure, method, prior_variance=TIGHT_PRIOR, seed=0):
    torch.manual_seed(seed)
    model = MLP((3, 6, 4, k)).double()
    x, labels = 2 * torch.randn(25, 3, dtype=torch.float64), torch.arange(25) % max(k, 2)
    given = {"structure": structure, "predictive": method, "prior_variance": prior_variance}
    return bb.Laplace(model, layers="all", **given).fit([(x, labels)]), x, labels


def dense_covariance(structure, model, x, labels):
    """Σ (P, P) in the order of `named_parameters`."""
    if structure != "kron":
        return dense.covariance(structure, model, x, labels, TIGHT_PRIOR)
    blocks = []
    for a, b in kron_factors(model, x, labels):
        h = torch.kron(b, a) / len(x)
        order = torch.arange(len(h)).reshape(len(b), -1)  # each output's weights, then its bias
        order = torch.cat([order[:, :-1].flatten(), order[:, -1]])
        blocks.append(torch.linalg.inv(h + torch.eye(len(h)) / TIGHT_PRIOR)[order][:, order])
    return torch.block_diag(*blocks)


def given_others(sigma, model):
    """Σ of the last layer's weights given all others, (kD, kD), class by class with the bias last."""
    k, width = model[-1].weight.shape
    own = torch.linalg.inv(torch.linalg.inv(sigma)[-k * (width + 1) :, -k * (width + 1) :])
    order = torch.cat([torch.arange(k * width).reshape(k, width), k * width + torch.arange(k)[:, None]], 1)
    return own[order.flatten()][:, order.flatten()]


@pytest.mark.parametrize(
    "structure, k, method",
    [
        *(("full", 1, "probit"), ("kron", 1, "quadrature"), ("diag", 1, "probit")),
        *(("full", 3, "pairwise"), ("kron", 3, "pairwise"), ("diag", 3, "meanfield")),
    ],
)
def test_the_bound_over_all_layers_is_that_of_a_numerical_maximisation(structure, k, method):
    bayes, x, labels = network(k, structure, method)
    bayes.temperature = TEMPERATURE
    model, rays = bayes.model, torch.randn(3, 3, dtype=torch.float64)
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
    bound = bayes.bound(x[:2])
    assert bool((bayes.limit(x[:2]).confidence <= bound + 1e-12).all())
    assert bool((bound <= bayes.bound(x[:2], form="theorem") + 1e-12).all())


@pytest.mark.parametrize("name, structure", [("convnet", "kron"), ("residual", "diag")])
def test_behind_max_pooling_the_last_layer_given_all_others_bounds_every_prediction(name, structure):
    """The theorem's is 1 on all of these rays. J is singular on some, and at x = 0 means nothing."""
    bayes, x = laplace(name, 3, n=3, layers="all", structure=structure, prior_variance=1.0)
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
        exact = bayes.posterior._exact(Prior(bayes.prior_variance))
        return head_bound(exact, x, BoundRequest(likelihood_for(3), "pairwise")) is not None

    assert known(MLP((3, 4, 3)))
    assert not known(Twice())
    for part in ("weight", "bias"):
        model = MLP((3, 4, 3))
        getattr(model[-1], part).requires_grad_(False)
        assert not known(model)
