"""Inputs that are strings, flags, empty, not finite, or one point without a batch."""

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError, DataError, ModelError
from classifiers import points, relu_mlp
from dense import autograd_jacobian, close, library_jacobian


class StringModel(nn.Module):
    """It takes lists of strings and makes tensors of them itself."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, texts):
        return self.head(torch.tensor([[float(len(text) + i) for i in range(4)] for text in texts]))


def test_inputs_that_are_lists_of_strings():
    batch = {"texts": ["a", "bb", "ccc"], "labels": torch.tensor([0, 1, 2])}
    bayes = bb.Laplace(StringModel()).fit([batch])
    assert bayes.predict_proba({"texts": ["dd"]}).shape == (1, 3) and bayes.known_residual is None
    with pytest.raises(ArgumentError, match="residual=False"):
        bb.Laplace(StringModel(), residual=True).fit([batch])


def test_one_point_without_a_batch_dimension_raises():
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), prior_variance=1.0).fit([(x, y)])
    with pytest.raises(ModelError, match=r"one point is x\[None\]"):
        bayes(x[0])


STRUCTURES = ["diag", "kron", "full"]


class Flagged(nn.Module):
    """It takes ids, weights shared by all points, a flag, and None."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, flag, input_ids, weights, extra):
        assert flag is True and extra is None
        return self.head((self.embedding(input_ids) * weights[0, :, None]).tanh().mean(1))


@pytest.mark.parametrize("structure", ["diag", "full"])
def test_a_mapping_of_inputs_may_hold_flags_and_none(structure):
    model = Flagged().double()
    ids = torch.randint(7, (6, 5))
    inputs = {"flag": True, "input_ids": ids, "weights": torch.rand(1, 5, dtype=torch.float64), "extra": None}
    points = [{**inputs, "input_ids": ids[i : i + 1]} for i in range(6)]
    close(library_jacobian(model, inputs), autograd_jacobian(model, points), 1e-13)
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(inputs, torch.arange(6) % 3)])
    separately = torch.cat([bayes.predict_proba(point) for point in points])
    close(bayes.predict_proba(inputs), separately, 1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("row", [0, 1, 5])
def test_inputs_of_the_first_batch_that_are_not_finite_raise(structure, layers, bad, row):
    x, y = points(6, dtype=torch.float64)
    x[row] = bad
    with pytest.raises(DataError, match="batch 0 holds NaN or infinity"):
        bb.Laplace(relu_mlp(dtype=torch.float64), layers=layers, structure=structure).fit([(x, y)])


def test_weights_of_all_layers_that_are_not_finite_are_named():
    model = relu_mlp(dtype=torch.float64)
    model[2].bias.data[0] = float("nan")
    with pytest.raises(DataError, match=r"weights hold NaN or infinity: '2\.bias'"):
        bb.Laplace(model, layers="all").fit([points(6, dtype=torch.float64)])


def test_an_error_that_the_model_raises_is_passed_on():
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        bb.Laplace(relu_mlp(dtype=torch.float64), layers="all").fit([points(6, 3, dtype=torch.float64)])


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("residual", [False, True, ("2",)])
def test_an_empty_batch_gives_empty_predictions_over_all_layers(structure, residual):
    model, x, y = dense.case("mlp")
    bayes = bb.Laplace(model, layers="all", structure=structure, residual=residual).fit([(x, y)])
    none = x[:0]
    assert bayes.predict_proba(none).shape == (0, 3)
    assert bayes(none).shape == (0, 3)
    assert bayes.logits(none).mean.shape == (0, 3)
    assert bayes.predict_proba(x).shape == (12, 3)  # the empty batches before it change nothing
    for method in (bayes.limit, bayes.certify, bayes.bound):
        with pytest.raises(DataError, match="empty"):
            method(none)
