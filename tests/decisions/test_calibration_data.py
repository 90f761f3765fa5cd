"""Calibration data that `fit` or `tune` has seen are refused, by all that promises something."""

import copy

import pytest
import torch
from torch import nn

import bitbayes as bb
import classifiers
import reference
from bitbayes.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
PROMISES = {
    "threshold": lambda bayes, loader: bayes.threshold(loader, risk=0.9, level=0.5),
    "sets": lambda bayes, loader: bayes.sets(loader, 0.5),
}


@pytest.fixture(scope="module")
def tuned():
    bayes, (x, y) = classifiers.trained(3, n=300)
    train, more, val, new = (
        (x[rows], y[rows]) for rows in (slice(100), slice(100, 150), slice(150, 220), slice(220, 300))
    )
    bayes.fit([train]).update([more]).tune(reference.loader(*val, 20), progress=False)
    return bayes, train, more, val, new


def both(*parts):
    return tuple(map(torch.cat, zip(*parts, strict=True)))


@pytest.mark.parametrize("name", PROMISES)
def test_seen_data_are_refused_in_any_order_and_batches(tuned, name):
    bayes, train, more, val, new = tuned
    promise = PROMISES[name]
    cases = {"`fit`": [train, more, both(train, more)], "`tune`": [val]}
    cases["`fit` and `tune`"] = [both(val, more, train)]
    for by, datasets in cases.items():
        for x, y in datasets:
            order = torch.randperm(len(x))
            with pytest.raises(DataError, match=f"^{by} has seen these {len(x)} points"):
                promise(bayes, reference.loader(x[order], y[order], 13))
    promise(bayes, [new])


@pytest.mark.parametrize("name", PROMISES)
def test_what_a_digest_cannot_notice(tuned, name):
    """A part of the data, or they with others: as the docs say."""
    bayes, train, _, val, new = tuned
    for x, y in ((val[0][1:], val[1][1:]), both(val, new), both(train, val)):
        PROMISES[name](bayes, [(x, y)])


def test_shares_take_any_data(tuned):
    bayes, _, _, (x, y), _ = tuned
    scores = bayes.score(x)
    assert bayes.threshold([(x, y)], accept=0.9) == bb.metrics.threshold(scores, accept=0.9)


def test_a_later_tune_replaces_the_data_of_an_earlier_one_if_it_chooses_all(tuned):
    bayes, _, _, val, new = copy.copy(tuned[0]), *tuned[1:]
    bayes.tune([new], objective="nll", progress=False)  # keeps the temperature that `val` has chosen
    for each in (val, new):
        with pytest.raises(DataError, match="`tune` has seen"):
            bayes.sets([each])
    bayes.tune([new], progress=False)
    with pytest.raises(DataError, match="`tune` has seen"):
        bayes.sets([new])
    bayes.sets([val])
    with pytest.raises(DataError, match="`tune` has seen"):  # the other one has seen the first
        tuned[0].sets([val])


def test_weights_do_not_hide_the_data_of_tune(tuned):
    bayes, _, _, (x, y), _ = copy.copy(tuned[0]), *tuned[1:]
    bayes.tune([(x, y, torch.rand(len(x)) + 0.5)], weighted=True, progress=False)
    with pytest.raises(DataError, match="`tune` has seen"):
        bayes.sets([(x, y)])


def test_intervals_refuse_them_too():
    torch.manual_seed(0)
    x = torch.randn(120, 3)
    y = x[:, :1] + torch.randn(120, 1)
    train, val, new = ((x[rows], y[rows]) for rows in (slice(40), slice(40, 80), slice(80, 120)))
    bayes = bb.Laplace(nn.Linear(3, 1), likelihood="gaussian").fit([train]).tune([val], progress=False)
    for seen, by in ((train, "fit"), (val, "tune")):
        with pytest.raises(DataError, match=f"^`{by}` has seen these 40 points"):
            bayes.conformal_interval([seen])
    bayes.conformal_interval([new])


def test_a_model_that_changes_its_inputs_hides_nothing():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(x.mul_(2))

    x, y = classifiers.points(60)
    loader = [(x.clone(), y)]
    bayes = bb.Laplace(InPlace(), prior_variance=1.0, residual=False).fit([(x.clone(), y)])
    with pytest.raises(DataError, match="`fit` has seen"):
        bayes.sets(loader, 0.5)
