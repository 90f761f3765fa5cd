"""The weights of a subnetwork: those of the largest posterior variance under the diagonal approximation.

The variance of a weight is 1/(h + τ), h its entry of diag H. So the n weights of the largest variance are
those of the smallest h, whatever the prior.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

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
    """The `count` weights with the smallest entries of diag H; of equal ones the first in the model's order.

    Args:
        diagonal: a fit with structure="diag".
        count: the number n of weights.
    """
    weights = diagonal.weights
    assert isinstance(weights, TrainableLayers)
    entries: dict[str, Tensor] = {}  # by parameter, (1, …)
    for layer in weights.layers:
        own = diagonal.curvature[layer.name]
        assert isinstance(own, DiagCurvature)
        entries.update(layer.split(own.diagonal[None]))
    order = torch.cat([each.flatten() for each in entries.values()]).argsort(stable=True).cpu()
    chosen = torch.zeros(len(order), dtype=torch.bool)
    chosen[order[:count]] = True
    parts = torch.split(chosen, [each.numel() for each in entries.values()])
    masks = {name: part[None] for name, part in zip(entries, parts, strict=True)}
    layers = []
    for layer in weights.layers:
        places = layer.join(masks[name] for name in layer.names)[0].nonzero()[:, 0]
        if len(places):
            layers.append(replace(layer, chosen=tuple(places.tolist())))
    return replace(weights, layers=tuple(layers))
