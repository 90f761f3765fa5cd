"""The numbers of a toy problem that the page needs: its network, its points, and what `tune` chose."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.errors import EdgeWarning
from bitbayes.toys import TOY_PROBLEMS, Toy, train_toy


def pack_toys(*, quick: bool = False) -> list[dict[str, Any]]:
    """Train the networks of all toys and return what the page needs, as numbers and lists.

    Args:
        quick: train for few steps only. The page works, but its networks have learned little.
    """
    return [pack_toy(toy, train_toy(toy, quick=quick)) for toy in (make() for make in TOY_PROBLEMS)]


def pack_toy(toy: Toy, network: nn.Module) -> dict[str, Any]:
    """Return one toy with its network. All numbers are float64, so that page and library can be compared."""
    tuned = fit_toy(toy, network)
    linear = fold_batch_norms(network)
    *hidden, head = linear
    return {
        "name": toy.name,
        "title": toy.title,
        "classes": max(2, toy.outputs),
        "points": toy.x.double().tolist(),
        "labels": toy.y.tolist(),
        "hidden": [{"weight": weight.tolist(), "bias": bias.tolist()} for weight, bias in hidden],
        "head": head[0].tolist(),
        "tuned": {
            "priorVariance": tuned.prior_variance,
            "temperature": tuned.temperature,
            "residualVariance": tuned.residual_variance,
            "residualThreshold": tuned.residual_threshold,
        },
    }


def fit_toy(toy: Toy, network: nn.Module) -> bb.Laplace:
    """Return a `Laplace` with the default options, fitted and tuned on a toy in float64."""
    (x, y), (held_out, labels) = (toy.x, toy.y), toy.validation
    bayes = bb.Laplace(network.double()).fit([(x.double(), y)], progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)  # the widest prior is the best one for the moons
        return bayes.tune([(held_out.double(), labels)], progress=False)


@torch.no_grad()
def fold_batch_norms(network: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return weight (o, i) and bias (o,) of each linear layer, with the batch norm behind it folded in.

    In eval mode a batch norm is an affine map, scale·x + shift.

    >>> network = bb.toys.MLP((2, 3, 1), batch_norm=True, last_bias=False).double().eval()
    >>> (weight, bias), (head, _) = fold_batch_norms(network)
    >>> x = torch.randn(5, 2).double()
    >>> torch.allclose(network(x), torch.relu(x @ weight.T + bias) @ head.T)
    True
    """
    layers: list[tuple[Tensor, Tensor]] = []
    for module in network.children():
        if isinstance(module, nn.Linear):
            bias = module.weight.new_zeros(module.out_features) if module.bias is None else module.bias
            layers.append((module.weight, bias))
        elif isinstance(module, nn.BatchNorm1d):
            assert module.running_mean is not None and module.running_var is not None
            weight, shift = layers.pop()
            scale = module.weight / (module.running_var + module.eps).sqrt()
            layers.append((scale[:, None] * weight, scale * (shift - module.running_mean) + module.bias))
    return layers
