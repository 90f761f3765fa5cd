"""The all-layer theorem's bound: against products of masked weights, and never below a limit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call, jacrev

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError
from bitbayes.toys import MLP
from ray_cases import kron_factors, laplace, slopes
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


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("k, method", CASES)
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_bound_over_all_layers_is_the_theorems(structure, k, method, temperature):
    bayes, x, labels = fitted(k, structure, method)
    bayes.temperature = temperature
    rays = torch.randn(4, 3, dtype=torch.float64)
    with torch.no_grad():
        plain = torch.stack([expected(bayes, structure, x, labels, ray, method) for ray in rays])
    plain = plain.nan_to_num(nan=1.0)  # a ray on which every unit dies: J is 0
    bound = bayes.bound(rays, form="theorem")
    assert bound.shape == (4,) and bound.dtype == torch.float64
    torch.testing.assert_close(bound, plain, rtol=0, atol=1e-7)
    assert bool((bayes.limit(rays).confidence <= bound).all())


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
    bound = bayes.bound(x[:6])
    assert bool((bayes.limit(x[:6]).confidence <= bound + 1e-12).all())
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
