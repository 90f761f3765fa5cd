"""What a norm's weight is multiplied with, by derivatives against those of torch.func."""

import pytest
import torch
from torch import nn

from bitbayes.model import find_layers
from dense import found_jacobian, jacobians


@pytest.mark.parametrize(
    "norm, shape",
    [
        (nn.BatchNorm1d(4, eps=0.5), (4, 3)),
        (nn.BatchNorm2d(4, eps=0.5), (4, 3, 2)),
        (nn.GroupNorm(2, 4, eps=0.5), (4, 3)),
        (nn.LayerNorm(3, eps=0.5), (4, 3)),
        (nn.LayerNorm((4, 3), eps=0.5), (4, 3)),
    ],
    ids=str,
)
def test_derivatives_of_norms_take_the_norms_own_eps(norm, shape):
    model = nn.Sequential(norm, nn.Flatten(), nn.LazyLinear(2)).double().eval()
    x = torch.randn(3, *shape, dtype=torch.float64)
    model(x)
    torch.testing.assert_close(
        found_jacobian(model, find_layers(model), x), jacobians(model, x), rtol=1e-10, atol=1e-12
    )
