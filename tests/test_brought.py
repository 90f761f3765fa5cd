"""What users bring: threads, autocast, compiled models, heads that are not what they seem, and slips."""

import copy
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError, EdgeWarning, ModelError


def data(n=40, d=4, k=3, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(n, d, dtype=dtype), torch.arange(n) % k


def mlp(k=3, dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, k)).to(dtype)


class Slow(nn.Module):
    """Does something after its head, so that threads are between hook and return at the same time."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 64), nn.Linear(64, 3)

    def forward(self, x):
        logits = self.head(torch.relu(self.body(x)))
        return {"logits": logits, "confidence": logits.softmax(1).amax(1)}


def all_of_many_threads(check, times):
    """Whether `check(i)` holds each time, eight at once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(8) as pool:
            return all(pool.map(check, range(times)))
    finally:
        torch.set_num_threads(threads)


def test_threads_do_not_see_each_others_features():
    torch.manual_seed(0)
    x, y = data()
    bayes = bb.Laplace(Slow().eval(), prior_variance=100.0).fit([(x, y)])
    inputs = [10.0**i * x for i in range(4)]
    with torch.no_grad():
        expected = [bayes(each) for each in inputs]
        honest = [bayes.predict_proba(each) for each in inputs]

    def one(i):
        with torch.no_grad():
            same = torch.equal(bayes(inputs[i % 4]), expected[i % 4])
        return same and torch.equal(bayes.predict_proba(inputs[i % 4]), honest[i % 4])

    assert all_of_many_threads(one, 2000)


def test_threads_do_not_see_each_others_hidden_layers():
    x, y = data()
    bayes = bb.Laplace(Slow().eval(), prior_variance=100.0, residual=("head",)).fit([(x, y)])
    inputs = [10.0**i * x for i in range(4)]
    expected = [bayes.predict_proba(each) for each in inputs]

    def one(i):
        return torch.equal(bayes.predict_proba(inputs[i % 4]), expected[i % 4])

    assert all_of_many_threads(one, 800)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_autocast_is_the_models_own_affair(layers):
    x, y = data()
    model = mlp()
    options = {"layers": layers, "prior_variance": 100.0}
    expected = bb.Laplace(model, **options).fit([(x, y)]).predict_proba(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bayes = bb.Laplace(model, **options).fit([(x, y)])
        probs, logits = bayes.predict_proba(x), bayes(x)
    assert probs.dtype == logits.dtype == torch.float32
    assert torch.allclose(probs.sum(1), torch.ones(40), atol=1e-6)
    # Features and logits of a last layer are the model's, rounded to 8 bits; nothing else is.
    assert (probs - expected).abs().max() < 0.02


class Cosine(nn.Linear):
    def forward(self, x):
        return 10 * functional.linear(
            functional.normalize(x, dim=1), functional.normalize(self.weight, dim=1)
        )


def test_a_head_that_is_not_linear_is_refused():
    x, y = data()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Cosine(8, 3, bias=False))
    with pytest.raises(ModelError, match=r"'2' \(Cosine\) does not compute"):
        bb.Laplace(model).fit([(x, y)])
    hooked = mlp()
    hooked[2].register_forward_hook(lambda module, args, output: 2 * output)
    with pytest.raises(ModelError, match="does not compute"):
        bb.Laplace(hooked).fit([(x, y)])


class Up(nn.Linear):
    def forward(self, x):
        return super().forward(x).float()


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "autocast", "upcast"])
def test_a_head_that_is_linear_in_coarse_arithmetic_is_not_refused(offset, kind):
    """Large features whose products cancel leave few digits, or none."""
    torch.manual_seed(0)
    head = (Up if kind == "upcast" else nn.Linear)(256, 3)
    head.weight.data -= head.weight.data.mean(1, keepdim=True)
    x, y = torch.randn(30, 256) + offset, torch.arange(30) % 3
    if kind in ("bfloat16", "upcast"):
        head, x = head.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        bayes = bb.Laplace(head).fit([(x, y)])
    assert bool(bayes.predict_proba(x).isfinite().all())


def test_a_head_that_overflows_is_said_to():
    x, y = data()
    model = mlp()
    nn.init.constant_(model[0].weight, 1e19)
    nn.init.constant_(model[2].weight, 1e20)
    with pytest.raises(DataError, match="overflows"):
        bb.Laplace(model).fit([(x.abs(), y)])


class Words(nn.Module):
    """Makes tensors itself."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, texts):
        return self.head(torch.tensor([[float(len(text) + i) for i in range(4)] for text in texts]))


def test_inputs_that_are_no_tensors():
    batch = {"texts": ["a", "bb", "ccc"], "labels": torch.tensor([0, 1, 2])}
    bayes = bb.Laplace(Words()).fit([batch])
    assert bayes.predict_proba({"texts": ["dd"]}).shape == (1, 3)


def test_a_compiled_model_with_a_residual_at_its_layers():
    x, y = data()
    bayes = bb.Laplace(torch.compile(mlp(), backend="eager"), residual=("2",)).fit([(x, y)])
    assert bool(bayes.predict_proba(x).isfinite().all())


def test_a_head_with_a_weight_norm():
    """The evidence is that of the weight it makes; draws of that weight have nowhere to go."""
    x, y = data()
    plain = mlp()
    normed = copy.deepcopy(plain)
    parametrizations.weight_norm(normed[2])
    first, second = (bb.Laplace(model).fit([(x, y)]) for model in (plain, normed))
    assert float(first.log_evidence()) == pytest.approx(float(second.log_evidence()), abs=1e-4)
    torch.testing.assert_close(first.predict_proba(x), second.predict_proba(x), rtol=0, atol=1e-5)
    with pytest.raises(ModelError, match="remove_parametrizations"):
        second.sample(2)


class Tied(nn.Module):
    """The output layer is the embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 6), nn.Linear(6, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.embed(ids).sum(1)))


def test_draws_of_a_tied_head():
    torch.manual_seed(0)
    ids, y = torch.randint(5, (60, 3)), torch.arange(60) % 5
    model = Tied().double()
    bayes = bb.Laplace(model).fit([(ids, y)])
    draws = bayes.sample(4000, generator=torch.Generator().manual_seed(0))
    logits = torch.vmap(lambda p: functional_call(model, p, (ids[:1],), tie_weights=False))(draws)[:, 0]
    gap = torch.tensor([1.0, -1, 0, 0, 0], dtype=torch.float64)
    logits, expected = logits.detach(), gap @ bayes.logits(ids[:1]).covariance[0].detach() @ gap
    # Of 4,000 draws a variance is known to 1/√2000 of itself; four of these.
    assert float((logits @ gap).var()) == pytest.approx(float(expected), rel=4 / math.sqrt(2000))


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_compiled_model_is_its_network(layers, tmp_path):
    x, y = data()
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    compiled(x)  # warm: hooks set from now on may go unheard
    bayes = bb.Laplace(compiled, layers=layers).fit([(x, y)])
    assert torch.equal(
        bayes.predict_proba(x), bb.Laplace(model, layers=layers).fit([(x, y)]).predict_proba(x)
    )
    bayes.save(tmp_path / "bayes.safetensors")
    again = bb.Laplace.load(tmp_path / "bayes.safetensors", compiled)
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


def test_the_drop_in_itself_can_be_compiled():
    x, y = data()
    bayes = bb.Laplace(mlp()).fit([(x, y)])
    compiled = torch.compile(bayes, backend="eager")  # a warning would be an error here
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), bayes(x), rtol=0, atol=1e-6)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)


def test_a_head_that_is_not_called():
    x, y = data()
    x = x.abs()
    bayes = bb.Laplace(Two()).fit([(x, y)])
    with pytest.raises(ModelError, match="did not call its linear layer 'a'"):
        bayes.predict_proba(-x)


def test_a_refused_refit_changes_nothing():
    x, y = data()
    model = mlp()
    bayes = bb.Laplace(model, layers="all", prior_variance={"0": 1.0, "2": 2.0}).fit([(x, y)])
    before = bayes.predict_proba(x)
    model[0].requires_grad_(False)
    with pytest.raises(ArgumentError, match="no layers"):
        bayes.fit([(2 * x, y)])
    assert torch.equal(bayes.predict_proba(x), before)


@pytest.mark.parametrize("grad", [True, False])
def test_a_mapping_of_priors_loads_whatever_is_frozen_now(grad, tmp_path):
    x, y = data()
    model = mlp()
    model[0].requires_grad_(False)
    bayes = bb.Laplace(model, layers="all", prior_variance={"2": 2.0}).fit([(x, y)])
    bayes.save(tmp_path / "bayes.safetensors")
    again = bb.Laplace.load(tmp_path / "bayes.safetensors", copy.deepcopy(model).requires_grad_(grad))
    assert again.prior_variance == {"2": 2.0}
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


@pytest.mark.parametrize("layers, structure", [("last", "kron"), ("last", "full"), ("all", "kron")])
def test_sums_follow_the_model_to_another_device(layers, structure):
    """There is none here but "meta", which has no numbers and does tell where tensors are."""
    x, y = data()
    fitted = (
        bb.Laplace(mlp(), layers=layers, structure=structure, residual=True).fit([(x, y)])._posterior.fitted
    )
    meta = torch.device("meta")
    away = {name: each.to(meta) for name, each in fitted.curvature.items()}
    both = fitted + replace(fitted, curvature=away, inputs=fitted.inputs.to(meta))
    found = [tensor for each in both.curvature.values() for tensor in each.tensors().values()]
    assert {value.device.type for value in (*found, both.inputs.mean)} == {"meta"}


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("structure", ["kron", "full", "diag", "isotropic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_prior_variance_that_is_accepted(k, structure, dtype):
    """Two points, and features that no data pin down: there the posterior is the prior."""
    x, y = data(dtype=dtype)
    bayes = bb.Laplace(mlp(k, dtype), structure=structure).fit([(x[:2], y[:2])])
    methods = ("probit", "quadrature", "mc") if k == 1 else ("pairwise", "probit", "bridge", "mc")
    for variance in (1e-300, 1e-50, 1e20, 1e39, 1e50, 1e200, 1e300):
        bayes.prior_variance = variance
        for method in methods:
            probs = bayes.predict_proba(x, method=method)
            torch.testing.assert_close(probs.sum(1), torch.ones(40, dtype=dtype), rtol=0, atol=1e-5)
        assert all(bool(each.isfinite().all()) for each in bayes.sample(2).values())
    with pytest.raises(ArgumentError, match="prior_variance"):
        bayes.prior_variance = 10**400


@pytest.mark.parametrize("objective", ["nll", "ood", "evidence"])
@pytest.mark.parametrize("residual", [False, True])
def test_the_warning_points_at_the_users_own_line(objective, residual):
    x, y = data()
    head = nn.Linear(4, 3)
    if objective == "evidence":  # weights of 0 are best explained by no variance
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    bayes = bb.Laplace(head, residual=residual).fit([(x, y)])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        bayes.tune([(x, head(x).argmax(1))], outliers=x, weight=numpy.float32(0), objective=objective)
    assert heard and all(each.category is EdgeWarning for each in heard)
    assert {each.filename for each in heard} == {__file__}


def test_the_gradient_of_quadrature_at_a_mean_of_zero():
    torch.manual_seed(0)
    x, y = torch.randn(30, 2).double(), torch.arange(30) % 2
    head = nn.Linear(2, 1, bias=False).double()
    bayes = bb.Laplace(head, predictive="quadrature").fit([(x, y)])
    # Across the weights the mean is 0, and a step along them changes it.
    w = head.weight.detach()[0]
    at = torch.stack([-w[1], w[0]])[None].requires_grad_()
    (gradient,) = torch.autograd.grad(bayes(at).sum(), at)
    step = 1e-5 * w
    with torch.no_grad():
        expected = (bayes(at + step) - bayes(at - step)).sum() / 2e-5
    assert float(gradient[0] @ w) == pytest.approx(float(expected), rel=1e-6)


def test_one_point_without_a_batch():
    x, y = data()
    bayes = bb.Laplace(mlp()).fit([(x, y)])
    with pytest.raises(ModelError, match=r"one point is x\[None\]"):
        bayes.predict_proba(x[0])


@pytest.mark.parametrize("structure", ["kron", "full", "diag"])
@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("residual", [False, True])
def test_the_gaussians_of_a_loader(structure, layers, residual):
    x, y = data()
    bayes = bb.Laplace(mlp(), structure=structure, layers=layers, residual=residual).fit([(x, y)])
    whole, parts = bayes.logits(x), bayes.logits([x[:15], x[15:]])
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.covariance, whole.covariance)


def test_full_covariances_a_few_points_at_a_time(monkeypatch):
    x, _ = data(dtype=torch.float64)
    model = mlp(dtype=torch.float64)
    y = model(x).argmax(1)  # what the model says: with labels that it knows nothing of the optimum is flat
    y[::7] = 0
    bayes = bb.Laplace(model, structure="full").fit([(x, y)])
    whole, tuned = bayes.predict_proba(x), bayes.tune([(x, y)], outliers=3 * x).prior_variance
    bayes.prior_variance = 1.0
    monkeypatch.setattr("bitbayes.last_layer.FULL_NUMBERS", 7 * 18 * 2)
    torch.testing.assert_close(bayes.predict_proba(x), whole, rtol=0, atol=1e-6)
    assert bayes.tune([(x, y)], outliers=3 * x).prior_variance == pytest.approx(tuned)


class Counting(nn.Linear):
    """Keeps something in its state that is no tensor."""

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        pass


def test_a_state_that_is_no_tensor():
    x, y = data()
    bayes = bb.Laplace(nn.Sequential(Counting(4, 8), nn.ReLU(), nn.Linear(8, 3))).fit([(x, y)])
    assert bool(bayes.predict_proba(x).isfinite().all())


def test_a_changed_model_is_not_saved(tmp_path):
    x, y = data()
    model = mlp()
    bayes = bb.Laplace(model).fit([(x, y)])
    model[2].weight.data += 1
    with pytest.raises(ModelError, match="has changed since"):
        bayes.save(tmp_path / "bayes.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_threshold_that_is_no_number():
    bayes = bb.Laplace(mlp(), residual=True)
    for bad in (torch.zeros(2), -1.0, math.inf):
        with pytest.raises(ArgumentError, match="residual_threshold"):
            bayes.residual_threshold = bad
    for zero in (0, 0.0, numpy.float32(0), torch.tensor(0.0)):
        bayes.residual_threshold = zero
        assert bayes.residual_threshold == 0.0
