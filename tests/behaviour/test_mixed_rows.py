"""`fit` refuses a network whose rows mix, and warns of one that is random, before it passes any data."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import bitbayes as bb
from bitbayes.errors import ModelError, NotFittedError, RandomModelWarning
from classifiers import points


class Net(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.between = between

    def forward(self, x):
        return self.head(self.between(self, self.body(x).relu()))


def normalised_by_the_batch(self, z):
    self.norm.train()
    return self.norm(z)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("between", [lambda self, z: z - z.mean(0), normalised_by_the_batch])
def test_a_network_whose_rows_mix_is_refused(between, layers):
    x, y = points()
    bayes, passed = bb.Laplace(Net(between), layers=layers), []

    def loader():
        for rows in torch.arange(40).split(10):
            passed.append(rows)
            yield x[rows], y[rows]

    with pytest.raises(ModelError, match="depends on the other rows of its batch"):
        bayes.fit(loader())
    assert len(passed) == 1
    with pytest.raises(NotFittedError):
        _ = bayes.posterior


def test_a_random_network_is_warned_of_and_its_predictions_are_repeatable():
    x, y = points()
    model = Net(lambda self, z: functional.dropout(z, training=True))
    with pytest.warns(RandomModelWarning, match="always on"):
        bayes = bb.Laplace(model, prior_variance=1.0).fit([(x, y)])
    expected = bayes.predict_proba(x)
    torch.rand(5)
    assert torch.equal(bayes.predict_proba(x), expected)
