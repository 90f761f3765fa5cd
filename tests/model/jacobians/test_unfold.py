"""The inputs of a convolution as the rows of a matrix, by derivatives against those of torch.func."""

import pytest
import torch
from torch import nn

from bitbayes.model import find_layers
from dense import found_jacobian, jacobians


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"padding": 2},
        {"padding": "same", "dilation": 2},
        {"padding": "valid"},
        {"padding": (2, 1), "padding_mode": "reflect"},
        {"padding": 1, "padding_mode": "replicate", "groups": 2},
        {"padding": 1, "padding_mode": "circular", "stride": (1, 3), "groups": 4},
        {"bias": False, "dilation": (2, 1)},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
def test_derivatives_of_convolutions_are_those_of_torch_func(kind, options):
    if kind is nn.Conv1d:
        options = {key: value[1] if isinstance(value, tuple) else value for key, value in options.items()}
    shape = (7,) if kind is nn.Conv1d else (7, 6)
    model = nn.Sequential(kind(4, 4, 3, **options), nn.Flatten(), nn.LazyLinear(2)).double()
    x = torch.randn(3, 4, *shape, dtype=torch.float64)
    model(x)
    torch.testing.assert_close(
        found_jacobian(model, find_layers(model), x), jacobians(model, x), rtol=1e-10, atol=1e-12
    )
