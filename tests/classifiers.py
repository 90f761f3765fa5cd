"""A small classifier and points for it."""

import torch
from torch import nn


def points(n=40, *shape, k=3, dtype=torch.float32):
    """Inputs (n, *shape), or (n, 4), and labels (n,) of max(k, 2) classes."""
    torch.manual_seed(0)
    return torch.randn(n, *(shape or (4,)), dtype=dtype), torch.arange(n) % max(k, 2)


def relu_mlp(k=3, dtype=torch.float32):
    """A network from 4 inputs over 8 hidden units to k logits."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, k)).to(dtype)
