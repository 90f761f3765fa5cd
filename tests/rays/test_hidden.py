"""The residual at hidden layers: its formula, limits, certificates, tuning and files."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray_cases import CERTIFIED, METHODS, deltas, fine_grid, laplace, largest_beyond
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError, ModelError

LAYERS = {"mlp": ("2", "4"), "convnet": ("4", "8"), "residual": ("norm", "head")}


def plain_kernel(x, train):
    """1/D Σ |x̂|³/3 with the training data's means and deviations."""
    train, x = train.flatten(1), x.flatten(1)
    variance = train.var(0, correction=0)
    return (((x - train.mean(0)) / variance.clamp_min(variance.mean()).sqrt()).abs() ** 3 / 3).mean(1)


def test_variances_add_up_over_levels():
    plain, x = laplace("mlp", 3, prior_variance=2.0)
    bayes, _ = laplace("mlp", 3, prior_variance=2.0, residual=["2", "4"])
    bayes.residual_variance, bayes.residual_threshold = 0.7, 1.0
    train, x, model = 2 * x, 3 * x, bayes.model
    with torch.no_grad():
        levels = [(part(x), part(train)) for part in (nn.Identity(), nn.Sequential(*list(model)[:2]),
                                                     nn.Sequential(*list(model)[:4]))]  # fmt: skip
    total = sum(plain_kernel(*level) for level in levels)
    extra = 0.7 * (total - 1.0).clamp_min(0)
    assert 0 < (extra > 0).sum() < len(x)
    expected = plain.logits(x).covariance + extra[:, None, None] * torch.eye(3)
    torch.testing.assert_close(bayes.logits(x).covariance, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_every_way_to_predict_is_the_same(layers):
    bayes, x = laplace("mlp", 3, layers=layers, residual=("4",))
    probs = bayes.predict_proba(2 * x)
    loader = [(part, torch.zeros(len(part))) for part in torch.split(2 * x, 7)]
    torch.testing.assert_close(bayes.predict_proba(loader), probs)
    torch.testing.assert_close(bayes(2 * x).softmax(1), probs)


def test_the_drop_in_is_differentiable():
    bayes, x = laplace("mlp", 3, residual=("2", "4"))
    x = (3 * x[:4]).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: bayes(x).softmax(1), x, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("k, method", METHODS)
def test_limit_is_one_of_k(name, k, method):
    bayes, x = laplace(name, k, n=20, predictive=method, prior_variance=0.01, residual=LAYERS[name])
    limit = bayes.limit(x)
    assert bool((limit.confidence == 1 / max(2, k)).all())
    torch.testing.assert_close(bayes.predict_proba(1e9 * x).amax(1), limit.confidence, rtol=0, atol=1e-3)


@pytest.mark.parametrize("k, method", CERTIFIED)
def test_certificates_are_never_broken_and_tight(k, method):
    bayes, x = laplace("mlp", k, n=15, predictive=method, prior_variance=0.5, residual=("2", "4"))
    bayes.residual_variance, bayes.residual_threshold = 1e-3, 2.0
    certificate = bayes.certify(x)
    top = torch.maximum(largest_beyond(bayes, x, fine_grid(certificate.alpha, 100)), certificate.limit)
    gap = certificate.confidence - top
    assert gap.min() >= 0
    assert gap.max() <= (1e-4 if k == 1 else 0.01)


@given(
    name=st.sampled_from(list(LAYERS)),
    k=st.integers(1, 3),
    layers=st.sampled_from(["last", "all"]),
    variance=st.floats(1e-6, 1e2),
    threshold=st.floats(0, 10),
    seed=st.integers(0, 10_000),
)
def test_certificates_on_any_network(name, k, layers, variance, threshold, seed):
    bayes, x = laplace(name, k, n=6, seed=seed, layers=layers, prior_variance=0.1, residual=LAYERS[name])
    bayes.residual_variance, bayes.residual_threshold = variance, threshold
    certificate = bayes.certify(x)
    assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 12))).all())


def test_a_ray_that_is_a_point():
    bayes, x = laplace("mlp", 3, residual=("4",))
    zero = torch.zeros_like(x[:1])
    torch.testing.assert_close(bayes.limit(zero).confidence, bayes.predict_proba(zero).amax(1))


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_update_tune_save_and_load(tmp_path):
    whole, x = laplace("mlp", 3, residual=("2", "4"))
    y = torch.arange(len(x)) % 3
    parts = bb.Laplace(whole.model, residual=["2", "4"]).fit([(2 * x[:13], y[:13])])
    parts.update([(2 * x[13:], y[13:])])
    torch.testing.assert_close(parts.predict_proba(5 * x), whole.predict_proba(5 * x))
    whole.tune([(2 * x, y)], objective="nll")
    assert whole.residual_threshold > 0
    whole.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", whole.model)
    assert loaded.residual == ("2", "4")
    torch.testing.assert_close(loaded.predict_proba(5 * x), whole.predict_proba(5 * x), rtol=0, atol=0)


def test_what_is_no_level():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    for bad in ((), ("5",), ("2", "2"), "2", 1.0):
        with pytest.raises(ArgumentError, match="a tuple of names of layers"):
            bb.Laplace(model, residual=bad)
    with pytest.raises(ArgumentError, match="int64"):
        bb.Laplace(model, residual=("2",)).fit([(torch.ones(4, 2).long(), torch.zeros(4).long())])

    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    with pytest.raises(ModelError, match="does not call"):
        bb.Laplace(Unused(), residual=("unused",)).fit([(torch.ones(4, 2), torch.zeros(4).long())])
    bayes = bb.Laplace(model, residual=("2",)).fit([(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))])
    with pytest.raises((DataError, RuntimeError)):
        bayes.predict_proba(torch.randn(4, 3))
