"""Small classifiers and points for them."""

import math

import torch
from torch import nn

import bitbayes as bb
import reference


def points(n=40, *shape, k=3, dtype=torch.float32):
    """Inputs (n, *shape), or (n, 4), and labels (n,) of max(k, 2) classes."""
    torch.manual_seed(0)
    return torch.randn(n, *(shape or (4,)), dtype=dtype), torch.arange(n) % max(k, 2)


def relu_mlp(k=3, dtype=torch.float32):
    """A network from 4 inputs over 8 hidden units to k logits."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, k)).to(dtype)


def trained(k, dtype=torch.float64, n=60, **options):
    """A slightly overconfident network, fitted to few points, and n points for validation."""
    torch.manual_seed(k)
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, k)).to(dtype)
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        angles = 2 * math.pi * torch.arange(k) / k
        model[2].weight.copy_(4 * torch.stack([angles.cos(), angles.sin()], 1))
    bayes = bb.Laplace(model, **options).fit(reference.loader(*drawn(model, 4)))
    return bayes, drawn(model, n)


@torch.no_grad()
def drawn(model, n):
    """Inputs, and labels drawn from the probabilities of a less confident network."""
    x = torch.randn(n, 2, dtype=model[0].weight.dtype)
    logits = 0.8 * model(x)
    p = logits.softmax(1) if logits.shape[1] > 1 else torch.cat([(-logits).sigmoid(), logits.sigmoid()], 1)
    return x, torch.multinomial(p, 1)[:, 0]
