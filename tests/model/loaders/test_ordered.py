"""Loaders whose first batches are left out, if they are those of before."""

from operator import length_hint

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from bitbayes.errors import ArgumentError, DataError
from bitbayes.model import OrderedLoader

X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10)


class Read(Dataset):
    """Points that remember which of them were read."""

    def __init__(self, labels=Y):
        self.labels, self.read = labels, []

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        self.read.append(index)
        return X[index], self.labels[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


LOADERS = {
    "DataLoader": lambda: DataLoader(TensorDataset(X, Y), 2),
    "list": lambda: list(zip(X.split(2), Y.split(2), strict=True)),
    "mappings": lambda: [{"x": x, "labels": y} for x, y in zip(X.split(2), Y.split(2), strict=True)],
    "stream": lambda: DataLoader(Stream(), 2),
    "texts": lambda: [([f"text {i}"], torch.tensor([i])) for i in range(5)],
    "seeded": lambda: DataLoader(
        TensorDataset(X, Y), 2, shuffle=True, generator=torch.Generator().manual_seed(0)
    ),
}


def labels(batches):
    return [(each["labels"] if isinstance(each, dict) else each[1]).tolist() for each in batches]


def first_pass(loader, skip):
    """What is known after a pass that was interrupted behind so many batches."""
    ordered = OrderedLoader(loader)
    whole = labels(ordered)
    return whole, {"skip": skip, "digest": ordered.digest_after(skip), "data": ordered.data}


@pytest.mark.parametrize("skip", [0, 1, 3, 5])
@pytest.mark.parametrize("name", LOADERS)
def test_the_first_batches_are_left_out_but_for_the_very_first(name, skip):
    whole, known = first_pass(LOADERS[name](), skip)
    assert whole == labels(LOADERS[name]())
    again = OrderedLoader(LOADERS[name](), **known)
    assert labels(again) == [whole[0], *whole[max(1, skip) :]]
    assert again.digest_after(skip) == known["digest"]
    expected = length_hint(LOADERS[name]())
    assert length_hint(again) == (max(0, expected - max(0, skip - 1)) if expected else 0)


def test_batches_that_are_left_out_are_not_read_where_their_indices_are_known():
    _, known = first_pass(DataLoader(Read(), 2), 3)
    data = Read()
    list(OrderedLoader(DataLoader(data, 2), **known))
    assert data.read == [0, 1, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(TensorDataset(X, Y), 3),
        DataLoader(TensorDataset(X, Y), 2, sampler=list(range(9, -1, -1))),
        DataLoader(Read(Y + 1), 2),  # the same order, and other labels in the first batch
        DataLoader(TensorDataset(X[:8], Y[:8]), 2),
        DataLoader(TensorDataset(X[:4], Y[:4]), 2),  # shorter than what was read
    ],
    ids=["batches", "order", "labels", "fewer", "too few"],
)
def test_other_batches_are_noticed(loader):
    _, known = first_pass(DataLoader(TensorDataset(X, Y), 2), 3)
    with pytest.raises(DataError, match="the first 3 batches are not those"):
        list(OrderedLoader(loader, **known))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_list_that_ends_before_what_was_read_is_noticed(count):
    _, known = first_pass(LOADERS["list"](), 3)
    with pytest.raises(DataError, match="are not those"):
        list(OrderedLoader(LOADERS["list"]()[:count], **known))


@pytest.mark.parametrize(
    "change", [lambda x, y: (x + 1, y), lambda x, y: (x, y + 1), lambda x, y: (x.double(), y)]
)
def test_other_contents_of_a_list_are_noticed(change):
    _, known = first_pass(LOADERS["list"](), 3)
    batches = LOADERS["list"]()
    batches[1] = change(*batches[1])
    with pytest.raises(DataError, match="are not those"):
        list(OrderedLoader(batches, **known))
    batches = LOADERS["list"]()
    batches[3] = change(*batches[3])  # which was not read before
    assert len(list(OrderedLoader(batches, **known))) == 3


def test_loaders_without_a_fixed_order_are_refused():
    data = TensorDataset(X, Y)
    for loader, says in (
        (DataLoader(data, 2, shuffle=True), "shuffles"),
        (DataLoader(data, batch_size=None, sampler=RandomSampler(data)), "shuffles"),
        (DataLoader(data, 2, num_workers=1, in_order=False), "in_order=False"),
        (iter(LOADERS["list"]()), "only once"),
    ):
        with pytest.raises(ArgumentError, match=says):
            OrderedLoader(loader)


@pytest.mark.parametrize("shape, seen", [((10,), True), ((10, 1), True), ((10, 2), False)])
def test_other_labels_are_noticed_and_those_of_positions_are_not_compared(shape, seen):
    """Labels of positions are augmented with the inputs, and so differ each time."""
    before, after = torch.zeros(shape), torch.ones(shape)
    _, known = first_pass(DataLoader(TensorDataset(X, before), 2), 3)
    again = OrderedLoader(DataLoader(TensorDataset(X, after), 2), **known)
    if seen:
        with pytest.raises(DataError, match="are not those"):
            list(again)
    else:
        assert len(list(again)) == 3
