"""The audit refuses regression before any work, and says what to use instead."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb
from bitbayes.auditing.regression import refuse_regression
from bitbayes.errors import ArgumentError

NAMES = ("`evaluate(test)`", "`bb.plots.intervals`", "`bb.plots.coverage_curve`", "likelihood='gaussian'")


class Refusing(nn.Linear):
    """A model that must not run."""

    def forward(self, x):
        raise AssertionError("the model ran")


def refused(model, data):
    stages = []
    with pytest.raises(ArgumentError) as error:
        bb.audit(model, data, data, data, progress=lambda stage, *_: stages.append(stage))
    assert stages == []
    assert all(name in str(error.value) for name in NAMES)


@pytest.mark.parametrize("shape", [(20,), (20, 1), (20, 2)])
def test_real_targets_are_refused_before_any_work(shape):
    refused(Refusing(3, shape[-1] if len(shape) > 1 else 1), [(torch.randn(20, 3), torch.randn(shape))])


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_a_laplace_for_values_is_refused_before_any_work(likelihood):
    model = bb.Laplace(nn.Linear(3, 2), likelihood=likelihood)
    refused(model, [(torch.randn(20, 3), torch.randn(20, 2))])


@pytest.mark.parametrize("labels", [torch.arange(20) % 3, (torch.arange(20) % 2).float()])
def test_classes_are_not_refused(labels):
    refuse_regression(nn.Linear(3, 3), [(torch.randn(20, 3), labels)])


@pytest.mark.parametrize("loader", [3, [], [torch.zeros(3)], iter([]), None])
def test_a_loader_that_will_not_do_is_left_to_the_other_checks(loader):
    refuse_regression(nn.Linear(3, 3), loader)


def test_the_order_of_the_next_pass_is_what_it_would_have_been():
    data = DataLoader(TensorDataset(torch.randn(20, 3), torch.arange(20) % 3), batch_size=20, shuffle=True)
    model, orders = nn.Linear(3, 3), []
    for look in (False, True):
        torch.manual_seed(0)
        if look:
            refuse_regression(model, data)
        orders.append(next(iter(data))[1])
    assert torch.equal(*orders)
