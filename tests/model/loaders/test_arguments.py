"""What a model takes of a batch: names, one tensor, precision."""

import pytest
import torch
from torch import nn

from bitbayes.errors import DataError, UnusedDataWarning
from bitbayes.model.loaders.arguments import as_arguments, takes_one_input

X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


class One(nn.Linear):
    def __init__(self):
        super().__init__(2, 3)

    def forward(self, x):
        return super().forward(x)


class Two(One):
    def forward(self, a, b, scale=1.0):
        return super().forward(a + b * scale)


class Any(One):
    def forward(self, x=None, **others):
        return super().forward(x)


def test_keys_that_the_model_takes_stay_as_they_are():
    given = {"a": X, "b": X, "scale": 2.0}
    assert as_arguments(given, Two(), 0) == given
    assert as_arguments({0: X, "b": X}, Two(), 0) == {0: X, "b": X}
    assert as_arguments({"x": X, "path": "a"}, Any(), 0) == {"x": X, "path": "a"}


@pytest.mark.parametrize("left", [{"path": ["a"] * 5}, {"id": Y}, {"other": X}, {"path": "a", "id": Y}])
def test_other_keys_are_left_out_with_one_notice(left):
    with pytest.warns(UnusedDataWarning, match=r"takes \['x'\].*\['.*'\] are left out.*adapt=") as caught:
        assert as_arguments({"x": X, **left}, One(), 0) == {"x": X}
    assert len(caught) == 1 and all(key in str(caught[0].message) for key in left)
    assert as_arguments({"x": X, **left}, One(), 1) == {"x": X}  # not once more: warnings are errors


def test_one_tensor_with_columns_is_the_input_under_any_name():
    assert as_arguments({"image": X}, One(), 0) is X
    with pytest.warns(UnusedDataWarning, match=r"\['id', 'path'\] are left out"):
        assert as_arguments({"id": Y, "image": X, "path": ["a"] * 5}, One(), 0) is X


@pytest.mark.parametrize(
    "given, model",
    [({"left": X, "right": X}, One()), ({"id": Y}, One()), ({"image": X}, Two()), ({"a": X, "c": X}, Two())],
)
def test_what_is_not_plain_is_refused_with_both_names(given, model):
    with pytest.raises(
        DataError, match=r"mapping with the keys \[.*\], and the model takes \[.*adapt="
    ) as error:
        as_arguments(given, model, 0)
    assert all(repr(key) in str(error.value) for key in given)


def test_a_hook_that_takes_keywords_may_take_any():
    model = One()
    model.register_forward_pre_hook(lambda _, args, kwargs: ((kwargs["image"],), {}), with_kwargs=True)
    assert as_arguments({"image": X, "path": "a"}, model, 0) == {"image": X, "path": "a"}


def test_float64_becomes_the_precision_of_a_model_that_has_none():
    assert as_arguments(X.double(), One(), 0).dtype == torch.float32
    assert as_arguments({"x": X.double()}, One().half(), 0)["x"].dtype == torch.float16
    assert as_arguments(X.double(), One().double(), 0).dtype == torch.float64
    with_times = One()
    with_times.register_buffer("first", torch.zeros(1, dtype=torch.float64))
    assert as_arguments(X.double(), with_times, 0).dtype == torch.float64
    for kept in (X.half(), Y, Y.bool()):
        assert as_arguments(kept, One(), 0) is kept


def test_how_many_inputs_a_model_takes():
    assert takes_one_input(One()) and takes_one_input(nn.Linear(2, 2))
    assert not takes_one_input(Two()) and not takes_one_input(Any())
