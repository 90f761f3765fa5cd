"""LeNet against the same steps written as functions."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bitbayes.toys import LeNet


def test_is_two_convolutions_and_two_linear_layers():
    model, x = LeNet().double(), torch.rand(2, 1, 28, 28, dtype=torch.float64)
    p = list(model.parameters())
    assert [tuple(q.shape) for q in p[::2]] == [(32, 1, 5, 5), (64, 32, 5, 5), (1024, 3136), (10, 1024)]
    h = F.max_pool2d(F.conv2d(x, p[0], p[1], padding=2).relu(), 2)
    h = F.max_pool2d(F.conv2d(h, p[2], p[3], padding=2).relu(), 2)
    h = F.linear(h.flatten(1), p[4], p[5]).relu()
    # Sums of 3,136 products of order 1e-2 lose under 1e-13.
    torch.testing.assert_close(model(x), F.linear(h, p[6], p[7]), rtol=0, atol=1e-13)


@pytest.mark.parametrize("classes", [1, 2, 26])
def test_gives_as_many_logits_as_asked_from_its_last_linear_layer(classes):
    model = LeNet(classes, hidden=8)
    assert isinstance(model[-1], nn.Linear) and model[-1].in_features == 8
    assert model(torch.rand(3, 1, 28, 28)).shape == (3, classes)
