"""Loaders as users have them."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bitbayes.errors import DataError
from bitbayes.model import PreviewedLoader, check_loader, grouped, items, model_device
from bitbayes.model.batches import batches

CPU = torch.device("cpu")
X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


def parts(loader):
    return [(x.tolist(), y.tolist()) for x, y in batches(loader, CPU)]


EXPECTED = [(X[:3].tolist(), Y[:3].tolist()), (X[3:].tolist(), Y[3:].tolist())]


@pytest.mark.parametrize(
    "loader",
    [
        [(X[:3], Y[:3]), (X[3:], Y[3:])],
        [[X[:3], Y[:3]], [X[3:], Y[3:]]],
        iter([(X[:3], Y[:3]), (X[3:], Y[3:])]),
        DataLoader(TensorDataset(X, Y), batch_size=3),
    ],
    ids=["tuples", "lists", "iterator", "DataLoader"],
)
def test_pairs(loader):
    assert parts(loader) == EXPECTED


@pytest.mark.parametrize("key", ["labels", "label"])
def test_mappings_give_up_their_labels(key):
    ((inputs, labels),) = batches([{"input_ids": X, "attention_mask": X + 1, key: Y}], CPU)
    assert set(inputs) == {"input_ids", "attention_mask"} and torch.equal(labels, Y)


def test_mappings_inside_pairs():
    ((inputs, labels),) = batches([({"input_ids": X, "note": "kept"}, Y)], CPU)
    assert inputs["note"] == "kept" and torch.equal(labels, Y)


def test_errors_count_batches_from_zero():
    with pytest.raises(DataError, match="batch 1 is a list of"):
        list(batches([(X, Y), [X]], CPU))
    with pytest.raises(DataError, match="empty"):
        list(batches([], CPU))


@pytest.mark.parametrize(
    "data, count",
    [
        (X, 1),
        ({"x": X}, 1),
        ([X, X], 2),
        ([(X, Y), (X, Y)], 2),
        ([[X], [X]], 2),
        (iter([X]), 1),
        ([{"x": X, "labels": Y}], 1),
    ],
)
def test_items_are_inputs_alone(data, count):
    inputs = list(items(data, CPU))
    assert len(inputs) == count
    for one in inputs:
        assert set(one) == {"x"} if isinstance(one, dict) else torch.equal(one, X)


def test_items_refuse_what_is_no_input():
    for data, says in ((3, "int"), ([3], "batch 0 is a int"), ([("a", "b")], r"\(str, str\)"), ([], "empty")):
        with pytest.raises(DataError, match=says):
            list(items(data, CPU))


def test_a_peek_takes_nothing_away():
    def stream():
        yield X, Y
        yield X + 1, Y

    peeked = PreviewedLoader(stream(), CPU)
    assert torch.equal(peeked.few, X[:2])
    assert [float(x[0, 0]) for x, _ in peeked] == [0.0, 1.0]
    assert len(PreviewedLoader([(X, Y)] * 3, CPU)) == 3
    with pytest.raises(DataError, match="empty"):
        PreviewedLoader([], CPU)


def test_a_peek_reads_one_batch_only():
    read = []

    def stream():
        for i in range(5):
            read.append(i)
            yield X, Y

    PreviewedLoader(stream(), CPU)
    assert read == [0]


def test_tensors_and_mappings_are_no_loaders():
    for wrong in (X, {"x": X}, "data", 3, None):
        with pytest.raises(DataError, match=type(wrong).__name__):
            check_loader(wrong)
    loader = [(X, Y)]
    assert check_loader(loader) is loader


@pytest.mark.parametrize("size", [1, 24, 25, 1000])
def test_grouping_keeps_rows_and_their_order(size):
    rows = [(X[:3], Y[:3]), (X[3:4], Y[3:4]), (X[4:], Y[4:])]
    pieces = list(grouped(iter(rows), size))
    assert torch.equal(torch.cat([x for x, _ in pieces]), X)
    assert torch.equal(torch.cat([y for _, y in pieces]), Y)
    assert all(x.nbytes >= size for x, _ in pieces[:-1])


def test_the_models_device():
    assert model_device(torch.nn.Linear(2, 2)) == CPU
    assert model_device(torch.nn.ReLU()) == CPU
    assert model_device(torch.nn.Linear(2, 2, device="meta")).type == "meta"
