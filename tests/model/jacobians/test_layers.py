"""The layers of a network: their kinds, their parameters, and how a vector is split into these."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from bitbayes.errors import ModelError
from bitbayes.model import Layer, TrainableLayers, find_layers, tied_to


class OwnLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    "module, kind, groups",
    [
        (nn.Linear(2, 3), "matrix", 1),
        (nn.Conv1d(2, 4, 3), "matrix", 1),
        (nn.Conv2d(4, 4, 3, groups=2, bias=False), "matrix", 2),
        (nn.Conv3d(2, 3, 3), "other", 1),
        (nn.BatchNorm2d(3), "norm", 1),
        (nn.LayerNorm(3), "norm", 1),
        (nn.GroupNorm(1, 3), "norm", 1),
        (OwnLinear(2, 3), "other", 1),  # it may compute something else
        (nn.Embedding(3, 2), "other", 1),
        (nn.LSTM(2, 3), "other", 1),
        (nn.PReLU(), "other", 1),
    ],
    ids=str,
)
def test_kinds_of_layers(module, kind, groups):
    (layer,) = find_layers(nn.Sequential(nn.ReLU(), module))
    assert (layer.name, layer.kind, layer.groups) == ("1", kind, groups)
    assert layer.size == sum(each.numel() for each in module.parameters())
    assert layer.names == tuple(f"1.{name}" for name, _ in module.named_parameters())


def test_only_parameters_that_require_gradients_are_taken():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].bias.requires_grad_(False)
    model[1].requires_grad_(False)
    first, last = find_layers(model)
    assert (first.names, first.has_weight, first.has_bias) == (("0.weight",), True, False)
    assert (last.name, last.has_bias) == ("2", True)
    with pytest.raises(ModelError, match="no parameter of the model requires a gradient"):
        find_layers(model.requires_grad_(False))


def test_tied_parameters_belong_to_one_layer_without_a_formula():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    first, second = find_layers(model)
    assert (first.kind, first.names) == ("other", ("0.weight", "0.bias"))
    assert (second.kind, second.names) == ("matrix", ("1.bias",))
    assert tied_to(model, first) == ["1.weight"] and tied_to(model, second) == []


def test_layers_without_derivatives_for_one_point_are_refused():
    with pytest.raises(ModelError, match=r"'1' \(BatchNorm1d\) has no running statistics"):
        find_layers(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False)))


def test_a_matrix_layers_vector_has_each_outputs_weights_before_its_bias():
    layer = Layer("0", "matrix", ("0.weight", "0.bias"), ((2, 3), (2,)))
    parts = layer.split(torch.arange(16.0).reshape(2, 8))
    assert parts["0.weight"][0].tolist() == [[0, 1, 2], [4, 5, 6]]
    assert parts["0.bias"].tolist() == [[3, 7], [11, 15]]


def test_another_layers_vector_has_one_parameter_after_the_other():
    layer = Layer("0", "norm", ("0.weight", "0.bias"), ((2,), (2,)))
    parts = layer.split(torch.arange(4.0)[None])
    assert parts["0.weight"].tolist() == [[0, 1]] and parts["0.bias"].tolist() == [[2, 3]]


@pytest.mark.parametrize("chosen", [None, (1, 3, 6)])
@pytest.mark.parametrize("kind, shapes", [("matrix", ((2, 3), (2,))), ("norm", ((4,), (4,)))])
def test_what_was_split_is_joined_and_what_was_not_chosen_is_0(kind, shapes, chosen):
    layer = Layer("0", kind, ("0.weight", "0.bias"), shapes, chosen=chosen)
    draws = torch.rand(2, layer.uncertain) + 1
    assert layer.uncertain == (8 if chosen is None else 3) and layer.size == 8
    parts = layer.split(draws)
    assert torch.equal(layer.join(parts.values()), draws)
    assert sum(int((each != 0).sum()) for each in parts.values()) == draws.numel()


def test_layers_come_back_from_json():
    found = TrainableLayers(3, find_layers(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4))))
    assert TrainableLayers.read(json.loads(json.dumps(asdict(found)))) == found
    assert found.layout.positions is False and not found.is_subnetwork
    some = TrainableLayers(3, tuple(replace(layer, chosen=(0, 2)) for layer in found.layers))
    assert TrainableLayers.read(json.loads(json.dumps(asdict(some)))) == some and some.is_subnetwork
