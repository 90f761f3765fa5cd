"""Fitting and updating over all layers, and models and data that are refused."""

import copy
import math

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from bitbayes.errors import DataError, ModelError
from dense import TextModel, close, fitted, loader


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_fit_and_update_give_the_posterior_of_one_fit(structure):
    bayes, model, x, y = fitted("residual", structure)
    half = bb.Laplace(model, layers="all", structure=structure).fit(loader(x[:7], y[:7]))
    half.update(loader(x[7:], y[7:]))
    close(half.logits(x).covariance, bayes.logits(x).covariance, 1e-12)
    assert float(half.log_evidence()) == pytest.approx(float(bayes.log_evidence()), rel=1e-12)


def test_modes_and_weights_stay_as_they_were_over_all_layers():
    model, x, y = dense.case("convnet")
    model.train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    bayes = bb.Laplace(model, layers="all").fit(loader(x, y))
    for job in (bayes.logits, bayes.predict_proba, bayes, lambda x: bayes.predict_proba(x, method="sampled_networks")):
        job(x)
        assert [module.training for module in model.modules()] == modes
    before = copy.deepcopy(model.state_dict())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class CountingLoader:
    """A loader that counts the batches taken from it."""

    def __init__(self, x, y):
        self.x, self.y, self.taken = x, y, 0

    def __iter__(self):
        for _ in range(5):
            self.taken += 1
            yield self.x, self.y


def test_layers_without_kronecker_factors_are_named_before_any_pass():
    model = TextModel().double()
    x, y = torch.randint(0, 10, (6, 3)), torch.arange(6) % 2
    data = CountingLoader(x, y)
    with pytest.raises(ModelError, match=r"'' \(TextModel\).*requires_grad_\(False\).*structure='diag'"):
        bb.Laplace(model, layers="all").fit(data)
    model.scale.requires_grad_(False)
    with pytest.raises(ModelError, match=r"'words' \(Embedding\)"):
        bb.Laplace(model, layers="all").fit(data)
    assert data.taken <= 2  # only the first batch was looked at
    model.words.requires_grad_(False)
    bb.Laplace(model, layers="all").fit([(x, y)])


def test_tied_weights_raise_and_are_named():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    model[2].weight = model[0].weight
    with pytest.raises(ModelError, match=r"'0' .*shares parameters with '2.weight'"):
        bb.Laplace(model, layers="all").fit([(torch.randn(4, 3), torch.arange(4) % 2)])


def test_a_dense_matrix_too_large_for_memory_raises():
    model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 2))
    with pytest.raises(ModelError, match=r"40,602 parameters.*13.2 GB"):
        bb.Laplace(model, layers="all", structure="full").fit([(torch.randn(4, 200), torch.arange(4) % 2)])


def test_bad_batches_raise_and_change_nothing():
    bayes, model, x, y = fitted("mlp", "kron")
    before = bayes.predict_proba(x)
    with pytest.raises(DataError, match="batch 1: the labels"):
        bayes.fit([(x, y), (x, y + 5)])
    with pytest.raises(DataError, match="batch 0: the labels have shape"):
        bayes.fit([(x, y[:5])])
    with pytest.raises(DataError, match="NaN"):
        bayes.predict_proba(x * math.nan)
    with pytest.raises(DataError, match="batch 1 holds NaN"):
        bayes.fit([(x, y), (x * math.inf, y)])
    model[0].weight.data += 1
    with pytest.raises(ModelError, match="has changed"):
        bayes.update([(x, y)])
    model[0].weight.data -= 1
    close(bayes.predict_proba(x), before, 1e-9)
