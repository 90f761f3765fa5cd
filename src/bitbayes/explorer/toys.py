"""The numbers of a toy problem that the page needs: its network, its points, and what `tune` chose."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.errors import FewPointsWarning
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
        "levels": pack_levels(tuned, network),
        "tuned": {
            "priorVariance": tuned.prior_variance,
            "temperature": tuned.temperature,
            "nearVariance": tuned.near_variance,
            "beyondVariance": tuned.beyond_variance,
        },
    }


def pack_levels(tuned: bb.Laplace, network: nn.Module) -> list[dict[str, Any]]:
    """Return the levels of the residual: `layer` is the number of the linear layer whose input the level is.

    Means and correlations are left out: the page computes them from the points, to which people add some.
    """
    residual, settings = tuned.known_residual, tuned.settings
    assert residual is not None
    linear = [name for name, module in network.named_children() if isinstance(module, nn.Linear)]
    layers = {level.name: linear.index(level.layer) for level in residual.levels}
    layers["classes"] = layers["head"]  # the same features, by their distance from the classes
    return [
        {
            "name": name,
            "layer": layers.get(name, 0),  # the network's own input is that of the first layer
            "weight": settings.levels[name],
            "threshold": settings.thresholds[name],
        }
        for name in residual.names
    ]


def fit_toy(toy: Toy, network: nn.Module) -> bb.Laplace:
    """Return a `Laplace` with the default options, fitted and tuned on a toy in float64."""
    (x, y), (held_out, labels) = (toy.x, toy.y), toy.validation
    bayes = bb.Laplace(network.double()).fit([(x.double(), y)], progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPointsWarning)  # the paper's toys have no more
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
