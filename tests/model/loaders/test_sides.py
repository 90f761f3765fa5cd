"""Both inputs of a pair in one mapping, and back."""

import pytest
import torch
from torch import nn

from bitbayes.model import PairAdapter, private_copy, selected
from bitbayes.model.loaders.sides import joined_sides, pair_for, side_of, sides_of


@pytest.mark.parametrize(
    "inputs", [(1, 2), ({"a": 1, "b": 2}, {"a": 3, "b": 4}), ({0: 1, "b": 2}, {0: 3, "b": 4})]
)
def test_sides_that_were_joined_come_back(inputs):
    assert sides_of(joined_sides(*inputs)) == inputs


@pytest.mark.parametrize(
    "inputs", [1, {}, {"a": 1}, {"a_chosen": 1}, {"a_chosen": 1, "a_rejected": 2, "b": 3}, {0: 1, 1: 2}]
)
def test_other_inputs_have_no_sides(inputs):
    assert sides_of(inputs) is None


def test_the_side_is_at_the_end_of_a_name():
    assert [side_of(each) for each in ("chosen", "x_rejected", "chosen_x", "rechosen", 0)] == [
        "chosen",
        "rejected",
        None,
        None,
        None,
    ]


def test_only_models_of_pairs_have_pairs():
    """So a model may have arguments of these names."""
    model, pair = nn.Linear(2, 1), {"x_chosen": torch.ones(1), "x_rejected": torch.zeros(1)}
    assert pair_for(model, pair) is None
    own = selected(model, None, PairAdapter())
    assert pair_for(own, pair) == pair_for(private_copy(own), pair) == ({"x": 1}, {"x": 0})
    assert pair_for(own, {"x": torch.ones(1)}) is None
