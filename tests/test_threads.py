"""Several threads may use one Laplace at the same time."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import bitbayes as bb
from classifiers import points


class SlowAfterHead(nn.Module):
    """It computes something after its head, so that several threads run between the hook and the return."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 64), nn.Linear(64, 3)

    def forward(self, x):
        logits = self.head(torch.relu(self.body(x)))
        return {"logits": logits, "confidence": logits.softmax(1).amax(1)}


def all_of_many_threads(check, times):
    """Whether `check(i)` is true for every i, with eight threads at a time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(8) as pool:
            return all(pool.map(check, range(times)))
    finally:
        torch.set_num_threads(threads)


def test_threads_do_not_see_each_others_features():
    x, y = points()
    bayes = bb.Laplace(SlowAfterHead().eval(), prior_variance=100.0).fit([(x, y)])
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
    x, y = points()
    bayes = bb.Laplace(SlowAfterHead().eval(), prior_variance=100.0, residual=("head",)).fit([(x, y)])
    inputs = [10.0**i * x for i in range(4)]
    expected = [bayes.predict_proba(each) for each in inputs]

    def one(i):
        return torch.equal(bayes.predict_proba(inputs[i % 4]), expected[i % 4])

    assert all_of_many_threads(one, 800)
