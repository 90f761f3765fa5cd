"""Cells: every value of the network lies in its enclosure, and enclosures are tight on narrow cells."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bitbayes.errors import ModelError
from bitbayes.rays.cell_tensor import CellTensor, parts_of
from ray_cases import NETWORKS, network
from ray_operations import FUNCTIONS, AroundFunction, around

GRID = torch.linspace(-1, 1, 101, dtype=torch.float64)


def cells(rows, width, seed=0):
    """Ends low and high (rows,) of cells whose widths are a share of their places; one begins at 0."""
    generator = torch.Generator().manual_seed(seed)
    low = 5 * torch.rand(rows, dtype=torch.float64, generator=generator)
    low[0] = 0
    return low, low * (1 + width) + 0.1 * width


@torch.no_grad()
def outside(function, x, low, high):
    """By how much the values leave their enclosure on a fine grid, and the largest radius."""
    slope, intercept, radius = parts_of(found := function(CellTensor.on(x, low, high)), found)
    assert slope.dtype == intercept.dtype == radius.dtype == torch.float64 and float(radius.min()) >= 0
    shape, worst = (-1, *[1] * (x.dim() - 1)), 0.0
    for t in GRID:
        delta = (low + high) / 2 + t * (high - low) / 2
        value = function(x * delta.reshape(shape))
        worst = max(worst, float(((value - slope * t - intercept).abs() - radius).max()))
    return worst, float(radius.max())


@pytest.mark.parametrize("width", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_operation_lies_in_its_enclosure(name, width):
    model, x = around(FUNCTIONS[name]), torch.randn(6, 24, dtype=torch.float64)
    low, high = cells(6, width)
    before = x.clone()
    # In float64, of values up to a thousand.
    assert outside(model, x, low, high)[0] <= 1e-11
    assert torch.equal(x, before)


@given(
    name=st.sampled_from(list(NETWORKS)),
    width=st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    seed=st.integers(0, 10_000),
)
def test_the_features_and_logits_of_a_network_lie_in_their_enclosures(name, width, seed):
    model, x = network(name, 3, 5, seed)
    low, high = cells(5, width, seed)
    children = list(model.children())
    assert outside(model, x, low, high)[0] <= 1e-9
    if isinstance(model, nn.Sequential):
        for end in range(1, len(children)):
            assert outside(nn.Sequential(*children[:end]), x, low, high)[0] <= 1e-9


@pytest.mark.parametrize("name", NETWORKS)
def test_errors_fall_faster_than_the_width_of_a_cell(name):
    model, x = network(name, 3, 500)
    radii = []
    for width in (1e-1, 1e-3):
        low = torch.linspace(0.5, 3, 500, dtype=torch.float64)
        with torch.no_grad():
            radii.append(float(model(CellTensor.on(x, low, low * (1 + width))).radius.mean()))
    assert radii[0] > 0, "the test needs units that switch"
    # The square of the width, up to the chance that a unit switches on one of the cells.
    assert radii[1] <= radii[0] / 1000


def test_where_no_unit_switches_there_is_no_error():
    x = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    low, high = torch.tensor([1.0]).double(), torch.tensor([2.0]).double()
    found = torch.relu(CellTensor.on(x, low, high) + 0.5)
    assert found.slope.tolist() == [[0.5, 0.0]]
    assert found.intercept.tolist() == [[2.0, 0.0]]
    assert found.radius.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.relu() - x.mean(0),
        lambda x: x.flip(0).relu(),
        lambda x: torch.maximum(x, x.flip(0)),
        lambda x: torch.maximum(x.flip(0), x),
    ],
)
def test_rows_of_several_cells_that_are_mixed_are_noticed(function):
    found = function(CellTensor.on(torch.randn(4, 24).double(), *cells(4, 0.1)))
    assert not found.by_row


@pytest.mark.parametrize("layer", [nn.Sigmoid(), nn.Softmax(1), nn.LeakyReLU(2.0)])
def test_operations_without_a_rule_raise(layer):
    model = AroundFunction(layer, 24).double()
    with pytest.raises(ModelError, match=r"sigmoid|softmax|leaky_relu"):
        model(CellTensor.on(torch.randn(4, 24).double(), *cells(4, 0.1)))


def test_the_repr_shows_the_radius():
    assert "radius=tensor([[0.]]" in repr(CellTensor.on(torch.ones(1, 1), *cells(1, 0.1)))
