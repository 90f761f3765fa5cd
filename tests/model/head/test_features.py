"""Features and logits of each batch, and its shape."""

import pytest
import torch
from torch import nn

from bitbayes.errors import DataError, EmptyLoaderError
from bitbayes.model import (
    Batch,
    DeferredChecks,
    FeatureBatch,
    FeaturePasses,
    find_head,
    forward,
)

X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_splitting_a_batch_of_features_splits_its_features_and_logits(rows):
    features, logits = torch.randn(5, 7), torch.randn(5, 3)
    whole = FeatureBatch({"x": X, "flag": True}, Y, "batch 3", features, logits)
    parts = list(whole.split(rows))
    assert [len(part) for part in parts] == [len(each) for each in Y.split(rows)]
    assert all(type(part) is FeatureBatch and part.name == "batch 3" for part in parts)
    assert torch.equal(torch.cat([part.features for part in parts]), features)
    assert torch.equal(torch.cat([part.logits for part in parts]), logits)
    assert torch.equal(torch.cat([part.inputs["x"] for part in parts]), X)
    assert torch.equal(torch.cat([part.labels for part in parts]), Y)


def test_the_outputs_of_a_shared_layer_are_told_apart():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    x = torch.randn(4, 3)
    features, logits, _ = forward(model, find_head(model, x), x)
    torch.testing.assert_close(features, layer(x).relu(), rtol=0, atol=0)
    torch.testing.assert_close(logits, model(x), rtol=0, atol=0)


@pytest.mark.parametrize("shape", ["column", "flat"])
def test_forward_gives_features_logits_and_the_models_shape(shape):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x):
            y = self.head(self.hidden(x).tanh())
            return y if shape == "column" else y.squeeze(-1)

    model, x = Model(), torch.randn(5, 3)
    for inputs in (x, x[:1]):
        head = find_head(model, inputs)
        features, logits, size = forward(model, head, inputs)
        assert head.name == "head" and size == tuple(model(inputs).shape)
        torch.testing.assert_close(features, model.hidden(inputs).tanh(), rtol=0, atol=0)
        torch.testing.assert_close(logits, model(inputs).reshape(-1, 1), rtol=0, atol=0)


def test_users_own_hooks_keep_working():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    x = torch.randn(4, 3)
    features, logits, _ = forward(model, find_head(model, x), x)
    torch.testing.assert_close(logits, features @ model[2].weight.T + model[2].bias)


def test_some_points_keep_their_labels_features_and_kernel():
    features, logits, root = torch.randn(5, 7), torch.randn(5, 3), torch.rand(5)
    whole = FeatureBatch(X, Y, "batch 3", features, logits, root_kernel=root)
    some = whole.select(torch.tensor([3, 1]))
    assert some.labels.tolist() == [3, 1] and torch.equal(some.root_kernel, root[[3, 1]])
    assert torch.equal(some.features, features[[3, 1]]) and torch.equal(some.logits, logits[[3, 1]])
    plain = FeatureBatch(X, None, "the input", features, logits).select(Y > 1)
    assert plain.labels is None and plain.root_kernel is None and len(plain) == 3


def test_a_batch_that_is_not_finite_is_refused_by_its_name():
    model = nn.Sequential(nn.Linear(2, 3))
    head = find_head(model, X)
    with pytest.raises(DataError, match="batch 7 holds NaN or infinity"), DeferredChecks() as checks:
        FeaturePasses(model, head, checks).run(Batch(X * torch.nan, Y, "batch 7"))


@torch.no_grad()
def test_positions_without_labels_are_left_out_and_all_of_them_refused():
    model, tokens = nn.Linear(2, 3), torch.randn(4, 5, 2)
    head, labels = find_head(model, tokens), torch.full((4, 5), -100)
    with DeferredChecks() as checks:
        passes = FeaturePasses(model, head, checks)
        assert passes.run(Batch(tokens, labels, "batch 0")) is None
        with pytest.raises(EmptyLoaderError, match="no position has a label"):
            passes.refuse_no_points()
        labels[1, 2] = 2
        points = passes.run(Batch(tokens, labels, "batch 1"))
        assert points.labels.tolist() == [2] and torch.equal(points.logits[0], model(tokens[1, 2]))
        passes.refuse_no_points()  # there is one now
