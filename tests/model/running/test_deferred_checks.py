"""Checks that are looked at late name the right batch, and raise before anything is returned."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import DataError, ModelError
from bitbayes.likelihoods import Categorical
from bitbayes.model import DeferredChecks
from bitbayes.model.running.deferred_checks import LAG
from bitbayes.predicting import Predictor
from classifiers import points, relu_mlp

BATCHES = 5


def batches(bad=None, value=torch.nan):
    """Five batches; the one with the number `bad` has this value in its second row."""
    x, y = points(8 * BATCHES)
    found = list(zip(x.split(8), y.split(8), strict=True))
    if bad is not None:
        found[bad][0][1, 2] = value
    return found


def mislabelled(bad, label):
    found = batches()
    found[bad][1][3] = label
    return found


class Counted:
    """A loader that counts the batches it has given out."""

    def __init__(self, data):
        self.data, self.given = data, 0

    def __iter__(self):
        for each in self.data:
            self.given += 1
            yield each


def fitted(model=None):
    bayes = bb.Laplace(model or relu_mlp(), prior_variance=1.0).fit(batches())
    bayes.near_variance = 1.0
    return bayes


LABELLED = {
    "fit": lambda bayes, data: bayes.fit(data),
    "update": lambda bayes, data: bayes.update(data),
    "tune": lambda bayes, data: bayes.tune(data),
    "tune by the paper's objective": lambda bayes, data: bayes.tune(data, objective="ood"),
    "evaluate": lambda bayes, data: bayes.evaluate(data),
}
JOBS = LABELLED | {
    "predict_proba": lambda bayes, data: bayes.predict_proba(data),
    "score": lambda bayes, data: bayes.score(data),
    "uncertainty": lambda bayes, data: bayes.uncertainty(data),
}


def assert_unchanged(bayes, before, x):
    assert (bayes.posterior, bayes.settings) == before[:2]
    assert torch.equal(bayes.predict_proba(x), before[2])


@pytest.mark.parametrize("bad", [0, 2, BATCHES - 1])
@pytest.mark.parametrize("job", JOBS)
def test_the_batch_that_is_not_finite_is_named_soon_and_nothing_is_changed(job, bad):
    bayes, (x, _) = fitted(), points()
    before = bayes.posterior, bayes.settings, bayes.predict_proba(x)
    loader = Counted(batches(bad))
    with pytest.raises(DataError, match=f"^batch {bad} holds NaN or infinity"):
        JOBS[job](bayes, loader)
    assert loader.given <= bad + 1 + LAG
    assert_unchanged(bayes, before, x)


@pytest.mark.parametrize("bad, label", [(0, -100), (2, 3), (BATCHES - 1, 10**9)])
@pytest.mark.parametrize("job", LABELLED)
def test_the_batch_with_a_label_out_of_range_is_named_and_nothing_is_changed(job, bad, label):
    bayes, (x, _) = fitted(), points()
    before = bayes.posterior, bayes.settings, bayes.predict_proba(x)
    shown = str(sorted({0, 1, 2, label}))
    with pytest.raises(DataError, match=f"^batch {bad}: the labels are .*from 0 to 2$") as caught:
        LABELLED[job](bayes, mislabelled(bad, label))
    assert shown in str(caught.value)
    assert_unchanged(bayes, before, x)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_of_one_logit_is_checked_late_too(label):
    found = [(x, y.clamp_max(1)) for x, y in batches()]
    found[3][1][0] = label
    with pytest.raises(DataError, match=r"^batch 3: the labels are .* needs 0 and 1"):
        bb.Laplace(relu_mlp(k=1)).fit(found)


def test_labels_are_indices_in_range_before_they_are_looked_at():
    labels = torch.tensor([-100, 0, 3, 4, 10**9])
    with pytest.raises(DataError, match="batch 0"), DeferredChecks() as checks:
        taken = Categorical().check_labels(labels, (5, 4), "batch 0", checks)
    assert taken.tolist() == [0, 0, 3, 3, 3]


def test_the_error_of_an_earlier_batch_comes_first():
    found = batches(bad=1)
    found[2] = found[2][0], found[2][1][:5]  # fewer labels than inputs, which is seen at once
    with pytest.raises(DataError, match=r"^batch 1 holds NaN"):
        bb.Laplace(relu_mlp()).fit(found)


def test_the_error_of_an_earlier_batch_comes_before_that_of_the_loader():
    def broken():
        yield from batches(bad=1)[:2]
        raise OSError("no such image")

    with pytest.raises(DataError, match=r"^batch 1 holds NaN"):
        fitted().predict_proba(broken())
    with pytest.raises(OSError, match="no such image"):
        fitted().predict_proba(each for each in [*batches(), *broken()])


class Sometimes(nn.Module):
    """A network whose output is not that of its last layer where the first input is large."""

    def __init__(self):
        super().__init__()
        self.body = relu_mlp()

    def forward(self, x):
        logits = self.body(x)
        return logits + (x[:, :1] > 100)


def test_an_output_that_is_not_the_heads_at_one_batch_is_noticed():
    found = batches()
    found[3][0][2, 0] = 1000.0
    with pytest.raises(ModelError, match=r"is not the output of its linear layer 'body\.2' at every input"):
        bb.Laplace(Sometimes()).fit(found)
    with pytest.raises(ModelError, match=r"is not the output of its linear layer 'body\.2' at every input"):
        fitted(Sometimes()).predict_proba(found)


def test_a_finite_batch_whose_sum_overflows_is_taken():
    x = torch.zeros(8, 4)
    x[:, 0] = 3e38  # eight of these have no sum
    model = nn.Sequential(nn.Hardtanh(), relu_mlp())
    bayes = bb.Laplace(model, prior_variance=1.0, residual=False).fit(batches())
    assert torch.equal(bayes.predict_proba([x]), bayes.predict_proba(x.clamp(-1, 1)))


def test_a_prediction_that_stops_early_raises_nothing_of_what_it_did_not_look_at(monkeypatch):
    monkeypatch.setattr("bitbayes.posteriors.last_layer.JOINED_ROWS", 1)
    bayes = fitted()
    predictor = Predictor(bayes.posterior, bayes.known_residual, bayes.settings)
    steps = predictor.gaussians(predictor.batches(batches(bad=0)))
    next(steps)
    steps.close()


def test_an_error_in_the_block_stays_where_all_checks_are_good():
    def work():
        with DeferredChecks() as checks:
            checks.add(torch.tensor(True), lambda: pytest.fail("it was good"))
            raise KeyError("another")

    with pytest.raises(KeyError, match="another"):
        work()


def test_what_is_known_at_once_is_raised_at_once():
    def refuse():
        raise DataError("known")

    with DeferredChecks() as checks:
        with pytest.raises(DataError, match="known"):
            checks.add(False, refuse)
        checks.add(True, refuse)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("job", JOBS)
def test_of_several_bad_batches_the_first_is_named(job, first):
    bayes, data = fitted(), batches()
    for x, _ in data[first:]:
        x[1, 2] = torch.nan
    with pytest.raises(DataError, match=f"batch {first}"):
        JOBS[job](bayes, data)


@pytest.mark.parametrize("job", LABELLED)
def test_labels_that_begin_at_one_are_named_in_their_first_batch(job):
    bayes, data = fitted(), batches()
    shifted = [(x, y + 1) for x, y in data]
    first = next(i for i, (_, y) in enumerate(shifted) if int(y.max()) == 3)
    with pytest.raises(DataError, match=f"batch {first}"):
        LABELLED[job](bayes, shifted)
