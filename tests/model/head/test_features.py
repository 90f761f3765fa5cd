"""Features and logits of each batch, and its shape."""

import pytest
import torch
from torch import nn

from bitbayes.model import (
    FeatureBatch,
    find_head,
    forward,
    labelled_batches,
)

CPU = torch.device("cpu")


X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


def parts(loader):
    return [(each.inputs.tolist(), each.labels.tolist()) for each in labelled_batches(loader, CPU)]


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
