"""The perceptron against its formula."""

import pytest
import torch
from torch import nn

from bitbayes.errors import ArgumentError
from bitbayes.toys import MLP


def test_is_linear_relu_linear():
    model, x = MLP((3, 7, 5, 2)).double(), torch.randn(4, 3, dtype=torch.float64)
    weights = [model[i].weight for i in (0, 2, 4)]
    biases = [model[i].bias for i in (0, 2, 4)]
    h = (x @ weights[0].T + biases[0]).clamp(min=0)
    h = (h @ weights[1].T + biases[1]).clamp(min=0)
    # Sums of at most eight products of order one lose under 1e-14.
    torch.testing.assert_close(model(x), h @ weights[2].T + biases[2], rtol=0, atol=1e-14)


def test_batch_norm_stands_between_linear_and_relu_and_not_at_the_end():
    kinds = [type(m) for m in MLP((2, 20, 20, 1), batch_norm=True)]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU] * 2 + [nn.Linear]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("last_bias", [True, False])
def test_biases_of_hidden_and_last_layers_are_chosen_apart(bias, last_bias):
    model = MLP((2, 3, 4, 1), bias=bias, last_bias=last_bias)
    assert [m.bias is not None for m in model if isinstance(m, nn.Linear)] == [bias, bias, last_bias]


def test_no_hidden_layer_is_one_linear_layer():
    assert [type(m) for m in MLP((2, 1))] == [nn.Linear]


@pytest.mark.parametrize("sizes", [(), (2,), (2, 0, 1)])
def test_too_few_or_empty_widths_raise(sizes):
    with pytest.raises(ArgumentError, match="sizes="):
        MLP(sizes)
