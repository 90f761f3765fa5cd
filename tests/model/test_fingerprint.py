"""Fingerprints of models: architecture and weights."""

import sys

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.model import fingerprint, fingerprinted
from classifiers import points


def test_a_fingerprint_sees_modules_shapes_and_values():
    def make(seed, activation=nn.ReLU, width=4):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, width), activation(), nn.BatchNorm1d(width), nn.Linear(width, 2))

    same, again = fingerprint(make(0)), fingerprint(make(0))
    assert same == again
    assert fingerprint(make(1)).architecture == same.architecture
    assert fingerprint(make(1)).weights != same.weights
    assert fingerprint(make(0, nn.Tanh)).architecture != same.architecture
    assert fingerprint(make(0, width=5)).architecture != same.architecture
    counted = make(0)
    counted[2].running_var += 1
    assert fingerprint(counted).weights != same.weights
    assert fingerprint(make(0).bfloat16()).architecture != same.architecture


class Counting(nn.Linear):
    """A layer whose state holds a dictionary."""

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        pass


def test_a_model_whose_state_holds_more_than_tensors():
    x, y = points()
    bayes = bb.Laplace(nn.Sequential(Counting(4, 8), nn.ReLU(), nn.Linear(8, 3))).fit([(x, y)])
    assert bool(bayes.predict_proba(x).isfinite().all())


@pytest.mark.parametrize("limit", [2**28, 0])
def test_a_fingerprint_made_beside_other_work_is_that_of_the_model_afterwards(monkeypatch, limit):
    monkeypatch.setattr(sys.modules["bitbayes.model.running.change_detector"], "MOST_BYTES", limit)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    before = fingerprint(model)
    with fingerprinted(model) as known:
        model(torch.randn(5, 3))
    assert known() == before
    with fingerprinted(model) as known:
        model[1].running_mean += 1
    assert known() == fingerprint(model) != before


def test_a_fit_whose_model_counts_its_calls_has_the_fingerprint_of_afterwards():
    class Counter(nn.Linear):
        def __init__(self):
            super().__init__(4, 8)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    x, y = points()
    model = nn.Sequential(Counter(), nn.ReLU(), nn.Linear(8, 3))
    bayes = bb.Laplace(model).fit([(x, y)])
    assert bayes.posterior.fitted.fingerprint == fingerprint(model)
