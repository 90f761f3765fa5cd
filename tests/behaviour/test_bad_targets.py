"""Targets, pairs and weights that will not do, for each likelihood of values, labels and pairs.

Each must raise an error that says what was given, and leave the `Laplace` as it was.
"""

import math

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import BitbayesError

N = 20


def case(name):
    """A model, good targets and inputs."""
    torch.manual_seed(0)
    x = torch.randn(N, 3)
    good = {
        "gaussian": torch.randn(N, 2),
        "heteroscedastic": torch.randn(N, 1),
        "multilabel": (torch.arange(2 * N) % 2).reshape(N, 2).float(),
    }
    outputs = 1 if name == "preference" else 2
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, outputs))
    return model, x, good.get(name)


def with_one(y, value):
    y = y.clone()
    y[3, 0] = value
    return y


def one_more_column(y):
    return torch.cat([y, y[:, :1]], 1)


TARGETS = {
    "another shape": (one_more_column, "expected \\(20, "),
    "fewer": (lambda y: y[:-3], "expected \\(20, "),
    "complex": (lambda y: y.to(torch.complex64), "complex64"),
    "NaN": (lambda y: with_one(y, math.nan), "the labels are \\[nan"),
    "infinity": (lambda y: with_one(y, math.inf), "the labels are \\[inf"),
    "texts": (lambda y: ["a"] * N, "expected a pair of tensors"),
    "none": (lambda y: None, "expected a pair of tensors"),
}
WEIGHTS = {
    "negative": (-torch.ones(N), "a weight is -1"),
    "all zero": (torch.zeros(N), "all weights are 0"),
    "NaN": (torch.full((N,), math.nan), "a weight is nan"),
    "fewer": (torch.ones(N - 1), "expected real numbers of shape \\(20,\\)"),
    "two columns": (torch.ones(N, 2), "expected real numbers of shape \\(20,\\)"),
}
PAIRS = {
    "unequal": (lambda x: (x, x[:-2]), "20 rows, and the second have 18"),
    "one tensor": (lambda x: x, "expected two inputs"),
    "a label of 2": (lambda x: ((x, -x), torch.full((N,), 2)), "expected 1"),
    "NaN labels": (lambda x: ((x, -x), torch.full((N,), math.nan)), "expected 1 .* leave ties out$"),
    "fewer labels": (lambda x: ((x, -x), torch.ones(N - 1)), "expected \\(20,\\)"),
}


def refused(name, batch, good, says, **options):
    """Assert that `fit`, `update` and `tune` refuse a batch, and that nothing changes."""
    model = case(name)[0]
    for task in ("fit", "update", "tune"):
        bayes = bb.Laplace(model, likelihood=name, prior_variance=1.0)
        if task != "fit":
            bayes.fit(good)
        weights = {key: value.clone() for key, value in model.state_dict().items()}
        before = bayes.settings, bayes._knowledge(), repr(bayes)
        with pytest.raises(BitbayesError, match=says):
            getattr(bayes, task)([batch], **options)
        assert (bayes.settings, bayes._knowledge(), repr(bayes)) == before
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("what", TARGETS)
@pytest.mark.parametrize("name", ["gaussian", "heteroscedastic", "multilabel"])
def test_bad_targets_are_refused_and_nothing_changes(name, what):
    _, x, y = case(name)
    make, says = TARGETS[what]
    refused(name, (x, make(y)), [(x, y)], says)


@pytest.mark.parametrize("what", WEIGHTS)
@pytest.mark.parametrize("name", ["gaussian", "heteroscedastic", "multilabel"])
def test_bad_weights_are_refused_and_nothing_changes(name, what):
    _, x, y = case(name)
    weights, says = WEIGHTS[what]
    refused(name, (x, y, weights), [(x, y)], says, weighted=True)


@pytest.mark.parametrize("what", PAIRS)
def test_bad_pairs_are_refused_and_nothing_changes(what):
    _, x, _ = case("preference")
    make, says = PAIRS[what]
    refused("preference", make(x), [(x, -x)], says)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.filterwarnings("ignore::bitbayes.errors.FewPointsWarning")
@pytest.mark.parametrize("rows", [1, N])
@pytest.mark.parametrize("name", ["gaussian", "heteroscedastic", "multilabel", "preference"])
def test_one_point_or_constant_targets_give_finite_predictions(name, rows):
    model, x, y = case(name)
    batch = (x[:rows], -x[:rows]) if y is None else (x[:rows], torch.ones_like(y[:rows]))
    bayes = bb.Laplace(model, likelihood=name).fit([batch]).tune([batch])
    if name == "preference":
        found = [bayes.predict_proba((x, -x)), bayes.reward(x).mean, bayes.reward(x).deviation]
    elif name == "multilabel":
        found = [bayes.predict_proba(x)]
    else:
        prediction = bayes.predict(x)
        found = [prediction.mean, prediction.variance, prediction.noise_variance]
        assert bool((prediction.total_variance > 0).all())
    assert all(bool(each.isfinite().all()) for each in found)
