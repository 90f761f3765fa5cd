"""The numbers of a toy problem that the page needs: its network, its points, and what `tune` chose."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.errors import FewPointsWarning
from bitbayes.toys import MLP, Toy

DIGITS = 6


def pack_toy(toy: Toy, network: nn.Module) -> dict[str, Any]:
    """Return one toy with its network, whose weights are rounded to six digits before anything is fitted.

    So the numbers in the file are short, and page and library can be compared in float64.
    """
    layers = [tuple(rounded(each) for each in layer) for layer in fold_batch_norms(network)]
    *hidden, (head, _) = layers
    points, validation = rounded(toy.x), rounded(toy.validation[0])
    packed = {
        "name": toy.name,
        "title": toy.title,
        "classes": max(2, toy.outputs),
        "points": points.tolist(),
        "labels": toy.y.tolist(),
        "validation": validation.tolist(),
        "validationLabels": toy.validation[1].tolist(),
        "hidden": [{"weight": weight.tolist(), "bias": bias.tolist()} for weight, bias in hidden],
        "head": head.tolist(),
    }
    return packed | pack_tuned(packed, fit_toy(packed))


def pack_tuned(packed: dict[str, Any], tuned: bb.Laplace) -> dict[str, Any]:
    """Return what `tune` chose, and temperature scaling on the same points."""
    scaling = bb.TemperatureScaling(tuned.model).fit(validation_points(packed))
    return {
        "levels": pack_levels(tuned),
        "tuned": {
            "priorVariance": tuned.prior_variance,
            "temperature": tuned.temperature,
            "nearVariance": tuned.near_variance,
            "beyondVariance": tuned.beyond_variance,
            "scaling": scaling.temperature,
        },
    }


def pack_levels(tuned: bb.Laplace) -> list[dict[str, Any]]:
    """Return the levels of the residual: `layer` is the number of the linear layer whose input the level is.

    Means and correlations are left out: the page computes them from the points, to which people add some.
    """
    residual, settings = tuned.known_residual, tuned.settings
    assert residual is not None
    linear = [name for name, module in tuned.model.named_children() if isinstance(module, nn.Linear)]
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


def fit_toy(packed: dict[str, Any]) -> bb.Laplace:
    """Return a `Laplace` with the default options, fitted and tuned on a packed toy in float64."""
    x = torch.tensor(packed["points"], dtype=torch.float64)
    bayes = bb.Laplace(network_of(packed)).fit([(x, torch.tensor(packed["labels"]))], progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPointsWarning)  # the paper's toys have no more
        return bayes.tune(validation_points(packed), progress=False)


def validation_points(packed: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Return the points on which `tune` chooses, as a loader of one batch."""
    x = torch.tensor(packed["validation"], dtype=torch.float64)
    return [(x, torch.tensor(packed["validationLabels"]))]


@torch.no_grad()
def network_of(packed: dict[str, Any]) -> MLP:
    """Return the network with the packed weights, in float64."""
    layers = [*packed["hidden"], {"weight": packed["head"]}]
    network = MLP(
        [len(layers[0]["weight"][0]), *(len(each["weight"]) for each in layers)], last_bias=False
    ).double()
    for module, numbers in zip(
        (each for each in network if isinstance(each, nn.Linear)), layers, strict=True
    ):
        for name, values in numbers.items():
            getattr(module, name).copy_(torch.tensor(values, dtype=torch.float64))
    return network.eval()


def rounded(values: Tensor, digits: int = DIGITS) -> Tensor:
    """Return float64 numbers with so many digits.

    >>> rounded(torch.tensor([1234.5678, 0.00012345678]), 3).tolist()
    [1230.0, 0.000123]
    """
    flat = [float(f"{value:.{digits}g}") for value in values.flatten().tolist()]
    return torch.tensor(flat, dtype=torch.float64).reshape(values.shape)


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
