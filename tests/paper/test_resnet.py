"""ResNet-18 against the same steps written as functions."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from paper.resnet import BasicBlock, resnet18


def numbered(model):
    """A copy with every parameter and running statistic random, so that no batch norm is the identity."""
    generator = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            noise = torch.rand(value.shape, generator=generator, dtype=value.dtype)
            value.copy_(0.5 + noise if "running_var" in name or value.dim() == 1 else (noise - 0.5) / 4)
    return model.eval()


def forward(state, x):
    """The network as a list of steps: eighteen layers with weights, and three shortcuts with their own."""
    weights = iter(state)

    def conv_norm(h, stride=1):
        kernel, scale, shift, mean, variance = (next(weights) for _ in range(5))
        h = F.conv2d(h, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        return F.batch_norm(h, mean, variance, scale, shift)

    h = conv_norm(x).relu()
    for stride in (1, 1, 2, 1, 2, 1, 2, 1):
        residual = conv_norm(conv_norm(h, stride).relu())
        shortcut = conv_norm(h, stride) if stride == 2 else h
        h = (residual + shortcut).relu()
    h = h.mean((2, 3))
    return F.linear(h, next(weights), next(weights))


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_is_the_same_as_its_steps(size):
    model = numbered(resnet18(classes=7, in_channels=1, width=4).double())
    x = torch.rand(2, 1, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    state = [value for value in model.state_dict().values() if value.is_floating_point()]
    # Eighteen layers of a few hundred products each lose about 1e-13 of the largest value.
    torch.testing.assert_close(model(x), forward(state, x), rtol=1e-11, atol=0)


def test_widths_and_sizes_of_the_stages():
    model = resnet18(width=4)
    h = torch.rand(1, 3, 32, 32)
    shapes = []
    for name, module in model.named_children():
        h = module(h)
        if name.startswith("st"):
            shapes.append(tuple(h.shape[1:]))
    assert shapes == [(4, 32, 32), (4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]


@pytest.mark.parametrize("channels_out, stride", [(4, 1), (8, 1), (4, 2), (8, 2)])
def test_a_block_may_change_its_channels_or_its_size_alone(channels_out, stride):
    block = BasicBlock(4, channels_out, stride=stride)
    assert block(torch.rand(2, 4, 8, 8)).shape == (2, channels_out, 8 // stride, 8 // stride)


@pytest.mark.parametrize("classes", [1, 2, 100])
def test_gives_as_many_logits_as_asked_from_its_last_linear_layer(classes):
    model = resnet18(classes, width=2)
    assert isinstance(model[-1], nn.Linear)
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, classes)
