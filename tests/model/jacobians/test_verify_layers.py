"""Layers that do more than they seem to are found and differentiated by autograd, or refused."""

import pytest
import torch
from torch import nn

from bitbayes.errors import ModelError
from bitbayes.model import find_layers, verify_layers
from dense import found_jacobian, jacobians


def test_a_layer_whose_weight_is_used_elsewhere_is_differentiated_by_autograd():
    class WeightUsedTwice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.unused = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.second(self.first(x) @ self.first.weight)

    model = WeightUsedTwice().double()
    x = torch.randn(4, 3).double()
    _, layers = verify_layers(model, find_layers(model), x)
    assert [layer.kind for layer in layers] == ["other", "matrix", "other"]
    torch.testing.assert_close(found_jacobian(model, layers, x), jacobians(model, x), rtol=1e-10, atol=1e-12)


def test_a_layer_whose_batch_dimension_is_second_is_differentiated_by_autograd():
    class BatchSecond(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):  # (n, 2, 3)
            return self.head(self.inside(x.transpose(0, 1)).tanh().mean(0))

    model = BatchSecond().double()
    x = torch.randn(5, 2, 3).double()
    _, layers = verify_layers(model, find_layers(model), x)
    assert [layer.kind for layer in layers] == ["other", "matrix"]
    torch.testing.assert_close(found_jacobian(model, layers, x), jacobians(model, x), rtol=1e-10, atol=1e-12)


def test_tied_weights_are_differentiated_as_one_parameter():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2)).double()
    model[2].weight = model[0].weight
    x = torch.randn(4, 3).double()
    _, layers = verify_layers(model, find_layers(model), x)
    assert [layer.kind for layer in layers] == ["other", "matrix", "matrix"]
    torch.testing.assert_close(found_jacobian(model, layers, x), jacobians(model, x), rtol=1e-10, atol=1e-12)


def test_networks_whose_outputs_depend_on_other_points_are_refused():
    class CentredBatch(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            return self.head(x - x.mean(0))

    model = CentredBatch()
    with pytest.raises(ModelError, match="depends on the other points"):
        verify_layers(model, find_layers(model), torch.randn(4, 3))
    with pytest.raises(ModelError, match=r"'1' .*running statistics"):
        find_layers(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)))
