"""The choice of a subnetwork: the smallest curvature, of equal ones the first, from layers of any kind."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bitbayes.errors import ArgumentError, DataError
from bitbayes.fitting import FitRequest
from bitbayes.fitting.subnetwork import choosing_request, smallest_curvature
from bitbayes.model import TrainableLayers, find_layers
from bitbayes.options import Options
from bitbayes.structures import DiagCurvature

# Its vector has the weights of each output before its bias; the model has all weights first.
MODEL = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 1))


def chosen(diagonals, count):
    """The chosen places by layer, from the diagonal of each layer in the order of its vector."""
    layers = find_layers(MODEL)
    curvature = {
        layer.name: DiagCurvature(torch.tensor(each)) for layer, each in zip(layers, diagonals, strict=True)
    }
    fitted = SimpleNamespace(weights=TrainableLayers(1, layers), curvature=curvature)
    return {layer.name: layer.chosen for layer in smallest_curvature(fitted, count).layers}


def test_the_smallest_entries_are_chosen():
    diagonals = [6.0, 5, 4, 3, 2, 1], [0.5, 9, 9, 0.4], [0.1, 9, 9]
    assert chosen(diagonals, 1) == {"2": (0,)}
    assert chosen(diagonals, 5) == {"0": (4, 5), "1": (0, 3), "2": (0,)}
    assert chosen(diagonals, 13) == {"0": (0, 1, 2, 3, 4, 5), "1": (0, 1, 2, 3), "2": (0, 1, 2)}


def test_of_equal_entries_the_first_of_the_models_parameters_are_chosen():
    equal = [0.0] * 6, [0.0] * 4, [0.0] * 3
    assert chosen(equal, 4) == {"0": (0, 1, 3, 4)}  # the weights of both outputs, and no bias
    assert chosen(equal, 5) == {"0": (0, 1, 2, 3, 4)}


def request(loader, count=3):
    return FitRequest(MODEL, loader, Options(layers="all", structure="full", subnetwork=count))


def test_the_pass_that_chooses_is_diagonal():
    options = choosing_request(request([])).options
    assert (options.structure, options.subnetwork, options.residual) == ("diag", None, False)


def test_too_many_weights_and_data_that_are_yielded_once_are_refused():
    with pytest.raises(ArgumentError, match="subnetwork=14: layers='all' has 13 weights"):
        choosing_request(request([], 14))
    for given in (5, torch.ones(2)):
        with pytest.raises(DataError, match="expected a loader"):
            choosing_request(request(given))
    with pytest.raises(DataError, match="two passes over the data, and a generator yields them once"):
        choosing_request(request(each for each in ()))
