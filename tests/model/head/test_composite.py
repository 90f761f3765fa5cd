"""Heads with whose output the model goes on: features are carried along, all else is refused."""

import pytest
import torch
from torch import nn

from bitbayes.errors import ModelError
from bitbayes.model import DeferredChecks, find_head, forward
from bitbayes.model.head.composite import composite_output

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).double()


class Two(nn.Module):
    """Two linear layers, and a function of their outputs."""

    def __init__(self, combine, k=3, bias=(True, True)):
        super().__init__()
        self.combine = combine
        self.a, self.b = (nn.Linear(5, k, bias=each) for each in bias)
        self.double()

    def forward(self, x):
        return self.combine(self.a(x), self.b(x.tanh()))


def checked_forward(model, x=X):
    head = find_head(model, x)
    with DeferredChecks() as checks:
        return head, *forward(model, head, x, checks)


@pytest.mark.parametrize("bias", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("k", [1, 3])
def test_features_of_an_average_are_those_of_both_heads(k, bias):
    model = Two(lambda f, g: (f + 3 * g) / 4, k, bias)
    head, features, logits, shape = checked_forward(model)
    assert head.parts == ("a", "b") and shape == (6, k) and head.outputs == k
    torch.testing.assert_close(logits, model(X), rtol=1e-12, atol=1e-12)
    one = torch.ones_like(X[:, :1])
    columns = [X / 4, *([one / 4] * bias[0]), 3 * X.tanh() / 4, *([3 * one / 4] * bias[1])]
    torch.testing.assert_close(features, torch.cat(columns, 1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(features @ head.weights(model).T, logits, rtol=1e-12, atol=1e-12)


class FirstToken(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.head = nn.Linear(5, k).double()

    def forward(self, x):
        return self.head(x)[:, 0]


@pytest.mark.parametrize("k", [1, 3])
def test_features_of_one_token_are_its_own(k):
    x = X.reshape(3, 2, 5)
    model = FirstToken(k)
    head, features, logits, _ = checked_forward(model, x)
    torch.testing.assert_close(features[:, :5], x[:, 0])
    torch.testing.assert_close(logits, model(x), rtol=1e-12, atol=1e-12)
    assert head.outputs == k


def test_the_columns_are_features_one_and_logits_times_the_factor():
    model = FirstToken(3)
    carried = composite_output(model, {"head": model.head}, X.reshape(3, 2, 5), factor=8.0)
    first = X.reshape(3, 2, 5)[:, 0]
    expected = torch.cat([first, torch.ones(3, 1), model.head(first)], 1)
    torch.testing.assert_close(carried, 8 * expected)


@pytest.mark.parametrize(
    "combine",
    [
        lambda f, g: f * g,
        lambda f, g: 30 * ((f + g) / 30).tanh(),  # which hardly changes small numbers
        lambda f, g: (f + g).relu(),
        lambda f, g: torch.maximum(f, g),
        lambda f, g: f + g + 1,
    ],
    ids=["product", "cap", "relu", "maximum", "constant"],
)
def test_what_is_not_linear_is_refused(combine):
    with pytest.raises(ModelError):
        find_head(Two(combine), X)


def test_a_cap_that_small_numbers_hardly_see_is_refused_in_float32():
    """W·x + b is right there to the rounding of bfloat16, but not for numbers that are 64 times as large."""
    linear, cap = Two(torch.add).float(), Two(lambda f, g: 100 * ((f + g) / 100).tanh()).float()
    cap.load_state_dict(linear.state_dict())
    x = X.float()
    torch.testing.assert_close(cap(x), linear(x), rtol=1e-3, atol=0)
    assert find_head(linear, x).parts == ("a", "b")
    with pytest.raises(ModelError):
        find_head(cap, x)


def test_an_average_of_positive_numbers_is_linear():
    model = Two(lambda f, g: (f + g) / 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.abs_()
    assert find_head(model, X.abs()).parts == ("a", "b")


class Sometimes(Two):
    """Not linear where an input is large."""

    def forward(self, x):
        return super().forward(x) + (x.abs().amax() > 100)


def test_what_is_linear_at_the_first_inputs_only_is_noticed_later():
    model = Sometimes(torch.add)
    head = find_head(model, X)
    with pytest.raises(ModelError, match="is not the output"), DeferredChecks() as checks:
        forward(model, head, 1000 * X, checks)
