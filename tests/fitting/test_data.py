"""One pass over training data: the preview, the batches, and the sums on their way."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bitbayes.errors import DataError, EmptyLoaderError
from bitbayes.fitting import FitRequest, Totals
from bitbayes.fitting.data import TrainingData
from bitbayes.likelihoods import Bernoulli, Gaussian
from bitbayes.model import Level, SideEffects
from bitbayes.options import Options
from bitbayes.residual import LevelSums
from bitbayes.structures import DiagCurvature

X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


class Named(nn.Linear):
    """Its input is called x."""

    def forward(self, x, size=None):
        return super().forward(x)


def training_data(loader, **options):
    return TrainingData(FitRequest(Named(2, 5), loader, Options(**options)))


def test_a_preview_reads_one_batch_and_leaves_all_of_them_to_the_pass():
    read = []

    def stream():
        for i in range(3):
            read.append(i)
            yield X + i, Y

    data = training_data(stream())
    assert torch.equal(data.preview, X[:2]) and read == [0]
    assert [float(batch.inputs[0, 0]) for batch in data] == [0.0, 1.0, 2.0]
    assert (data.totals.batches, data.totals.rows) == (3, 15)


def test_a_mapping_is_previewed_as_it_is():
    assert torch.equal(training_data([{"x": X, "labels": Y}]).preview["x"], X)


def test_what_cannot_be_read_raises_before_the_pass():
    with pytest.raises(EmptyLoaderError, match="empty"):
        training_data([])
    with pytest.raises(DataError, match="batch 0 is empty"):
        training_data([(X[:0], Y[:0])])
    with pytest.raises(DataError, match="Tensor"):
        training_data(X)


def test_points_that_a_sampler_repeats_are_read_but_not_given():
    data = TensorDataset(X, Y)
    sampler = DistributedSampler(data, 2, 1, shuffle=False)
    passed = training_data(DataLoader(data, 2, sampler=sampler))
    assert [batch.labels.tolist() for batch in passed] == [[1, 3]]
    assert (passed.totals.batches, passed.totals.rows) == (2, 3)


def test_a_model_that_changes_its_preview_does_not_change_the_batch():
    data = training_data([(X.clone(), Y)])
    data.preview.zero_()
    assert [torch.equal(batch.inputs, X) for batch in data] == [True]
    named = training_data([{"x": X.clone(), "size": 3, "labels": Y}])
    assert named.preview["size"] == 3
    named.preview["x"].zero_()
    assert [torch.equal(batch.inputs["x"], X) for batch in named] == [True]


def fitted_of(level_sums, **options):
    """What the sums of a pass become, with a level '2' beside the input."""
    run = SimpleNamespace(fingerprint=None, side_effects=SideEffects())
    totals = Totals({}, 5, 0.0, level_sums=level_sums)
    request = FitRequest(nn.Linear(2, 5), [], Options(**options))
    return totals.as_fitted(None, None, {}, request, run, (Level("2", "2", -1),))


def test_levels_whose_sums_overflow_are_left_out_unless_they_were_asked_for():
    near, far = (LevelSums.of(size * X.double(), correlated=True) for size in (1.0, 1e90))
    assert [*fitted_of({"input": near, "2": near}).level_sums] == ["input", "2"]
    left = fitted_of({"input": near, "2": far})
    assert [*left.level_sums] == ["input"] and left.levels == ()
    left = fitted_of({"input": far, "2": near})
    assert [*left.level_sums] == ["2"] and [each.name for each in left.levels] == ["2"]
    with pytest.raises(DataError, match="overflow float64: scale them down"):
        fitted_of({"input": far, "2": near}, residual=True)


def test_sums_of_points_are_in_float64():
    totals, one = Totals(), DiagCurvature(torch.tensor([[2.0**24]]))
    for more in (one, DiagCurvature(torch.ones(1, 1)), DiagCurvature(torch.ones(1, 1))):
        totals.add_points(Gaussian(), torch.zeros(3, 2).double(), torch.ones(3, 2), {"head": more})
    assert totals.count == 9 and float(totals.loss) == 9  # half of two squared errors of 1 each
    assert totals.squared_errors.tolist() == [9, 9]
    assert totals.curvature["head"].diagonal.tolist() == [[2.0**24 + 2]]


def test_classifiers_have_no_squared_errors():
    totals = Totals()
    totals.add_points(Bernoulli(), torch.zeros(3, 1).double(), torch.ones(3), {})
    assert totals.squared_errors is None and float(totals.loss) == pytest.approx(3 * math.log(2))


@pytest.mark.parametrize(
    "dtype, size, says",
    [(torch.float32, 1e39, "in float64, or scale"), (torch.float64, 1e309, ": scale its")],
)
def test_sums_that_overflow_are_refused(dtype, size, says):
    totals = Totals(curvature={"2": DiagCurvature(torch.tensor([[size]], dtype=torch.float64))})
    with pytest.raises(DataError, match=f"the layer '2' overflow {dtype}.*{says}"):
        totals.check_overflow(dtype)
    Totals(curvature={"2": DiagCurvature(torch.ones(1, 1))}).check_overflow(dtype)
