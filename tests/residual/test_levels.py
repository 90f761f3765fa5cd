"""The residual at hidden layers: its formula, predictions, tuning and files."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError, ModelError
from ray_cases import laplace
from reference import residual_kernel


def test_the_kernels_of_all_levels_are_added():
    plain, x = laplace("mlp", 3, prior_variance=2.0)
    bayes, _ = laplace("mlp", 3, prior_variance=2.0, residual=["2", "4"])
    bayes.residual_variance, bayes.residual_threshold = 0.7, 1.0
    train, x, model = 2 * x, 3 * x, bayes.model
    with torch.no_grad():
        before = [nn.Sequential(*list(model)[:count]) for count in (0, 2, 4)]
        levels = [(part(x), part(train)) for part in before]
    total = sum(residual_kernel(*level) for level in levels)
    extra = 0.7 * (total - 1.0).clamp_min(0)
    assert 0 < (extra > 0).sum() < len(x)
    expected = plain.logits(x).covariance + extra[:, None, None] * torch.eye(3)
    torch.testing.assert_close(bayes.logits(x).covariance, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_loaders_and_drop_in_agree_with_the_prediction(layers):
    bayes, x = laplace("mlp", 3, layers=layers, residual=("4",))
    probs = bayes.predict_proba(2 * x)
    loader = [(part, torch.zeros(len(part))) for part in torch.split(2 * x, 7)]
    torch.testing.assert_close(bayes.predict_proba(loader), probs)
    torch.testing.assert_close(bayes(2 * x).softmax(1), probs)


def test_the_drop_in_with_hidden_levels_is_differentiable():
    bayes, x = laplace("mlp", 3, residual=("2", "4"))
    x = (3 * x[:4]).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: bayes(x).softmax(1), x, atol=1e-4)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_update_tuning_and_files_keep_hidden_levels(tmp_path):
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


def test_layers_that_cannot_be_levels_raise():
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


def test_an_activation_in_place_does_not_change_the_residual():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)]
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    found = []
    for inplace in (False, True):
        layers[1] = nn.ReLU(inplace)
        bayes = bb.Laplace(nn.Sequential(*layers), residual=("1",)).fit([(x, y)])
        found.append(bayes.predict_proba(x))
    assert torch.equal(*found)
