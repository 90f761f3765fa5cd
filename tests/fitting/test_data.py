"""One pass over training data: the preview, the batches, and the sums on their way."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bitbayes.errors import ArgumentError, DataError, EmptyLoaderError
from bitbayes.fitting import FitRequest, Totals
from bitbayes.fitting.data import TrainingData
from bitbayes.options import Options
from bitbayes.structures import DiagCurvature

X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


def training_data(loader, **options):
    return TrainingData(FitRequest(nn.Linear(2, 5), loader, Options(**options)))


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
    with pytest.raises(ArgumentError, match="residual"):
        training_data([(X.long(), Y)], residual=True)


def test_points_that_a_sampler_repeats_are_read_but_not_given():
    data = TensorDataset(X, Y)
    sampler = DistributedSampler(data, 2, 1, shuffle=False)
    passed = training_data(DataLoader(data, 2, sampler=sampler))
    assert [batch.labels.tolist() for batch in passed] == [[1, 3]]
    assert (passed.totals.batches, passed.totals.rows) == (2, 3)


def test_moments_of_all_inputs_are_summed_up():
    batches = [(X[:2], Y[:2]), (X[2:], Y[2:])]
    data = training_data(batches)
    assert len(list(data)) == len(batches)  # none is summed up yet: the features of all may wait
    torch.testing.assert_close(data.totals.input_moments.mean, X.double().mean(0))


@pytest.mark.parametrize("last", [X[:, :1], X.long()])
def test_inputs_that_are_not_of_one_kind_end_all_residual(last):
    batches = [(X, Y), (last, Y), (X, Y)]
    data = training_data(batches)
    assert len(list(data)) == len(batches)  # none is summed up yet: the features of all may wait
    assert data.totals.input_moments is None
    assert training_data([(X, Y)], residual=False).totals.input_moments is None


def test_sums_of_points_are_in_float64():
    totals, one = Totals(), DiagCurvature(torch.tensor([[2.0**24]]))
    for more in (one, DiagCurvature(torch.ones(1, 1)), DiagCurvature(torch.ones(1, 1))):
        totals.add_points(torch.ones(3), {"head": more})
    assert totals.count == 9 and float(totals.loss) == 9
    assert totals.curvature["head"].diagonal.tolist() == [[2.0**24 + 2]]


@pytest.mark.parametrize(
    "dtype, size, says",
    [(torch.float32, 1e39, "in float64, or scale"), (torch.float64, 1e309, ": scale its")],
)
def test_sums_that_overflow_are_refused(dtype, size, says):
    totals = Totals(curvature={"2": DiagCurvature(torch.tensor([[size]], dtype=torch.float64))})
    with pytest.raises(DataError, match=f"the layer '2' overflow {dtype}.*{says}"):
        totals.check_overflow(dtype)
    Totals(curvature={"2": DiagCurvature(torch.ones(1, 1))}).check_overflow(dtype)
