"""Made-up inputs: their kinds and ranges, and that other outputs at them are noticed."""

import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

from bitbayes.errors import ModelError
from bitbayes.model import KnownOutputs, input_kinds
from bitbayes.model.running import known_outputs
from classifiers import points, relu_mlp


def made(inputs):
    return {each.key: each.made(seed) for seed, each in enumerate(input_kinds(inputs))}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_numbers_lie_within_half_a_deviation_of_each_columns_mean(dtype):
    x = torch.randn(50, 3, dtype=dtype) * torch.tensor([1, 100, 0.01]) + torch.tensor([0, 1000, 3.0])
    x = x.to(dtype)
    found = made(x)[None]
    assert found.dtype == dtype and found.shape == (3, 3)
    mean, deviation = x.double().mean(0), x.double().std(0)
    assert bool(((found.double() - mean).abs() <= deviation * 0.51 + 2**-8 * mean.abs()).all())


def test_whole_numbers_lie_in_the_range_of_their_column():
    x = torch.stack([torch.arange(40) % 3, torch.arange(40) + 100], 1)
    found = made(x)[None]
    assert found.dtype == torch.int64
    assert bool(((found >= x.amin(0)) & (found <= x.amax(0))).all()) and len(found[:, 1].unique()) > 1


def test_of_two_neighbouring_whole_numbers_the_larger_one_is_taken_and_of_others_any():
    x = torch.stack([torch.arange(40) % 2 + 1, torch.arange(40) % 2 - 1, torch.arange(40) % 7 - 4], 1)
    found = made(x)[None]
    assert found[:, :2].tolist() == [[2, 0]] * 3
    assert bool(((found[:, 2] >= -4) & (found[:, 2] <= 2)).all()) and len(found[:, 2].unique()) > 1


def test_masks_hide_nothing():
    ids, mask = torch.randint(5, 90, (6, 7)), torch.ones(6, 7, dtype=torch.int64)
    mask[:3, 4:] = 0
    found = made({"input_ids": ids, "attention_mask": mask, "flags": mask.bool()})
    assert bool(found["attention_mask"].all()) and bool(found["flags"].all())
    assert found["attention_mask"].dtype == torch.int64 and found["flags"].dtype == torch.bool
    assert set(found) == {"input_ids", "attention_mask", "flags"}


def test_many_columns_share_one_range():
    (kind,) = input_kinds(torch.rand(20, 3, 32, 32))
    assert len(kind.low) == len(kind.high) == 1 and kind.made(0).shape == (3, 3, 32, 32)


@pytest.mark.parametrize(
    "inputs",
    [
        torch.randn(1, 4),  # one row
        torch.ones(5, 4),  # all rows the same
        torch.full((5, 4), torch.nan),
        {"x": torch.randn(5, 4), "scale": torch.full((5, 1), torch.inf)},
        torch.zeros(0, 4),
        {"x": torch.randn(5, 4), "texts": ["a"] * 5},
        {"x": torch.randn(5, 4), "shared": torch.randn(4, 4)},
        {"x": torch.randn(5, 4), "step": torch.tensor(1.0)},
    ],
)
def test_nothing_is_made_up_of_other_inputs(inputs):
    assert input_kinds(inputs) == ()


def test_made_up_inputs_are_no_rows_of_the_data():
    x, _ = points()
    for row in made(x)[None]:
        assert bool((x != row).any(1).all())


def test_they_are_the_same_after_a_file():
    kinds = input_kinds({0: torch.randn(9, 4), 1: torch.arange(9)})
    known = KnownOutputs.of(relu_mlp(), input_kinds(torch.randn(9, 4)))
    assert KnownOutputs.read(json.loads(json.dumps(asdict(known)))) == known
    again = [
        known_outputs.InputKind.read(each) for each in json.loads(json.dumps([asdict(k) for k in kinds]))
    ]
    assert tuple(again) == kinds and torch.equal(again[1].made(1), kinds[1].made(1))


def test_other_outputs_are_noticed_and_rounding_is_not():
    model, kinds = relu_mlp(), input_kinds(points()[0])
    known = KnownOutputs.of(model, kinds)
    known.check(model)
    model[2].bias.data *= 1 + 1e-5
    known.check(model)
    model[2].bias.data += 0.01
    with pytest.raises(ModelError, match=r"outputs differ by up to 0\.01"):
        known.check(model)


def test_few_numbers_are_kept():
    model = nn.Linear(4, 5000)
    assert len(KnownOutputs.of(model, input_kinds(points()[0])).outputs) == known_outputs.KEPT_NUMBERS


def test_models_that_do_not_take_made_up_inputs_have_none():
    class Picky(nn.Linear):
        def forward(self, x):
            if len(x) == known_outputs.MADE_ROWS:
                raise ValueError("not these")
            return super().forward(x)

    assert KnownOutputs.of(Picky(4, 3), input_kinds(points()[0])) is None
