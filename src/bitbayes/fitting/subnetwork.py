"""The weights of a subnetwork: those of the largest posterior variance under the diagonal approximation.

The variance of a weight is 1/(h + τ), h its entry of diag H. So the n weights of the largest variance are
those of the smallest h, whatever the prior.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from bitbayes.errors import DataError
from bitbayes.fitted import Fitted
from bitbayes.fitting.data import FitRequest
from bitbayes.model import TrainableLayers, check_loader, find_layers
from bitbayes.structures import DiagCurvature


def choosing_request(request: FitRequest) -> FitRequest:
    """The pass that chooses the weights; raises if they cannot be chosen from these layers and this loader.

    >>> from bitbayes.options import Options
    >>> options = Options(layers="all", structure="full", subnetwork=2)
    >>> choosing_request(FitRequest(torch.nn.Linear(2, 2), [], options)).options.structure
    'diag'
    """
    options, loader = request.options, check_loader(request.loader)
    options.check_subnetwork(sum(layer.size for layer in find_layers(request.model, options.layer_names)))
    if isinstance(loader, Iterator):
        raise DataError(
            f"subnetwork={options.subnetwork} takes two passes over the data, and a {type(loader).__name__} "
            "yields them once: give a DataLoader or a list"
        )
    return replace(request, options=replace(options, structure="diag", subnetwork=None, residual=False))


def smallest_curvature(diagonal: Fitted, count: int) -> TrainableLayers:
    """The `count` weights with the smallest entries of diag H; of equal ones the first.

    Args:
        diagonal: a fit with structure="diag".
        count: the number n of weights.
    """
    weights = diagonal.weights
    assert isinstance(weights, TrainableLayers)
    entries = []
    for layer in weights.layers:
        own = diagonal.curvature[layer.name]
        assert isinstance(own, DiagCurvature)
        entries.append(own.diagonal)
    chosen = torch.zeros(sum(map(len, entries)), dtype=torch.bool)
    chosen[torch.cat(entries).argsort(stable=True)[:count].cpu()] = True
    parts = torch.split(chosen, [layer.size for layer in weights.layers])
    layers = (
        replace(layer, chosen=tuple(part.nonzero()[:, 0].tolist()))
        for layer, part in zip(weights.layers, parts, strict=True)
    )
    return replace(weights, layers=tuple(layer for layer in layers if layer.chosen))
