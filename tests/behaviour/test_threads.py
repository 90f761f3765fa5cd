"""Several threads may use one Laplace at the same time."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
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


class InTraining(nn.Module):
    """Batch norm and dropout, which in training mode give other rows and change the statistics."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.drop = nn.Linear(4, 32), nn.BatchNorm1d(32), nn.Dropout(0.5)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.norm(self.body(x)))))


@pytest.mark.parametrize(
    "options", [{}, {"layers": "all"}, {"layers": "all", "predictive": "sampled_networks"}]
)
def test_threads_neither_change_the_model_nor_disturb_each_other(options):
    """The model is in training mode, as it is after `Net(); load_state_dict()`, and others use it as well."""
    x, y = points()
    model = InTraining()
    bayes = bb.Laplace(model, prior_variance=0.01, residual=False, **options).fit([(x, y)])
    inputs = [10.0**i * x[:8] for i in range(4)]
    expected = [predicted(bayes, each) for each in inputs]
    parameters, state = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    twin = nn.Sequential(model.body, nn.ReLU())  # the user's own use of the same modules
    plain = [twin(each).detach() for each in inputs]

    def one(i):
        with torch.no_grad():
            alone = torch.equal(twin(inputs[i % 4]), plain[i % 4])
        return alone and torch.equal(predicted(bayes, inputs[i % 4]), expected[i % 4])

    assert all_of_many_threads(one, 400)
    assert all(parameters[name] is each for name, each in model.named_parameters())
    assert all(isinstance(each, nn.Parameter) for each in model.parameters())
    assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())
    assert all(module.training for module in model.modules())


def predicted(bayes, x):
    """Predictions, with the same drawn networks each time."""
    drawn = {"generator": torch.Generator().manual_seed(0)} if bayes.predictive == "sampled_networks" else {}
    return bayes.predict_proba(x, **drawn)
