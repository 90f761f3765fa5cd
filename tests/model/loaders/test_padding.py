"""What a DistributedSampler repeats is left out, and shares together are the data, each point once."""

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler, TensorDataset

import bitbayes as bb
from bitbayes.errors import ArgumentError
from bitbayes.model import Batch, Unpadded, count_unpadded, labelled_batches
from classifiers import points, relu_mlp


def numbers(loader):
    """The points that a loader gives for its own, by their numbers."""
    batches = filter(None, map(Unpadded(loader), labelled_batches(loader, nn.Identity())))
    return [int(each) for batch in batches for each in batch.labels]


def share(n, rank, size, **options):
    data = TensorDataset(torch.zeros(n, 2), torch.arange(n))
    return DataLoader(data, 3, sampler=DistributedSampler(data, size, rank, **options))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n, size", [(1, 1), (1, 8), (2, 3), (3, 2), (7, 4), (8, 4), (9, 4), (20, 3)])
def test_every_point_is_in_one_share(n, size, shuffle):
    shares = [numbers(share(n, rank, size, shuffle=shuffle)) for rank in range(size)]
    assert sorted(each for some in shares for each in some) == list(range(n))


def test_a_sampler_that_leaves_points_out_is_taken_as_it_is():
    shares = [numbers(share(7, rank, 3, shuffle=False, drop_last=True)) for rank in range(3)]
    assert shares == [[0, 3], [1, 4], [2, 5]]


def test_mappings_are_cut_too():
    rows = [{"x": torch.zeros(2), "labels": torch.tensor(i)} for i in range(5)]
    loaders = [DataLoader(rows, 2, sampler=DistributedSampler(rows, 2, r, shuffle=False)) for r in (0, 1)]
    assert [numbers(each) for each in loaders] == [[0, 2, 4], [1, 3]]


def test_a_batch_sampler_of_the_same_kind_is_looked_into():
    data = TensorDataset(torch.zeros(7, 2), torch.arange(7))
    sampler = DistributedSampler(data, 2, 1, shuffle=False)
    assert numbers(DataLoader(data, batch_sampler=BatchSampler(sampler, 3, False))) == [1, 3, 5]


class Reversed(DistributedSampler):
    def __iter__(self):
        return reversed(list(super().__iter__()))


class Sorted(BatchSampler):
    pass


def test_it_is_refused_where_the_repeated_points_are_not_known():
    data = TensorDataset(torch.zeros(7, 2), torch.arange(7))
    sampler = DistributedSampler(data, 2, 1, shuffle=False)
    with pytest.raises(
        ArgumentError, match="the sampler is a Reversed: give a sampler that repeats no point"
    ):
        count_unpadded(DataLoader(data, sampler=Reversed(data, 2, 1)))
    with pytest.raises(ArgumentError, match="by a Sorted"):
        count_unpadded(DataLoader(data, batch_sampler=Sorted(sampler, 3, False)))
    with pytest.raises(ArgumentError, match="in_order=False"):
        count_unpadded(DataLoader(data, sampler=sampler, num_workers=1, in_order=False))
    even = TensorDataset(torch.zeros(8, 2), torch.arange(8))  # nothing is repeated
    assert count_unpadded(DataLoader(even, sampler=Reversed(even, 2, 1))) is None
    assert count_unpadded([1, 2]) is None


class Around(Sampler):
    """A sampler of one's own, or a batch sampler of single points, which keeps another one in any place."""

    def __init__(self, inside, name="sampler", *, batches=False):
        self.name, self.batches, self.myself = name, batches, self
        setattr(self, name, inside)

    def __iter__(self):
        inside = getattr(self, self.name)
        return iter([[each] for each in inside] if self.batches else inside)


@pytest.mark.parametrize(
    "loader",
    [
        lambda data, inside: DataLoader(data, 3, sampler=Around(inside)),
        lambda data, inside: DataLoader(data, batch_size=None, sampler=Around(inside, "source")),
        lambda data, inside: DataLoader(data, 3, sampler=Around(Around(Around(inside, "a"), "b"), "c")),
        lambda data, inside: DataLoader(data, 3, sampler=Around([data, {"first": inside}])),
        lambda data, inside: DataLoader(data, batch_sampler=BatchSampler(Around(inside), 3, False)),
        lambda data, inside: DataLoader(data, batch_sampler=Around(inside, "source", batches=True)),
        lambda data, inside: DataLoader(data, batch_sampler=Around(Around(inside), batches=True)),
    ],
)
def test_a_sampler_around_one_that_repeats_points_is_refused(loader):
    def own(n, **options):
        data = TensorDataset(torch.zeros(n, 2), torch.arange(n))
        return count_unpadded(loader(data, DistributedSampler(data, 2, 1, shuffle=False, **options)))

    with pytest.raises(ArgumentError, match="a Around gives out the points of a DistributedSampler: give a"):
        own(7)
    assert own(8) is None and own(7, drop_last=True) is None  # nothing is repeated


def test_samplers_that_a_sampler_only_knows_of_are_no_matter():
    class Trainer:
        def __init__(self, sampler):
            self.sampler = sampler

    data = TensorDataset(torch.zeros(7, 2), torch.arange(7))
    own = Around(range(7))
    own.trainer = Trainer(DistributedSampler(data, 2, 1))
    assert count_unpadded(DataLoader(data, 3, sampler=own)) is None


@pytest.mark.parametrize("layers", ["last", "all"])
def test_fits_of_shares_are_merged_to_the_fit_of_all(layers):
    x, y = points(41, dtype=torch.float64)
    data, model = TensorDataset(x, y), relu_mlp(dtype=torch.float64)
    loaders = [DataLoader(data, 4, sampler=DistributedSampler(data, 3, rank)) for rank in range(3)]
    merged = bb.merge([bb.Laplace(model, layers=layers).fit(each) for each in loaders])
    whole = bb.Laplace(model, layers=layers).fit(DataLoader(data, 41))
    # Sums in another order: a few roundings of float64.
    torch.testing.assert_close(merged.predict_proba(x), whole.predict_proba(x), rtol=0, atol=1e-12)
    assert merged.posterior.fitted.count == 41


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("n, size", [(1, 2), (3, 1), (7, 2), (8, 2), (9, 4), (20, 4), (24, 4)])
def test_what_accelerate_repeats_is_left_out(n, size, split):
    accelerate = pytest.importorskip("accelerate.data_loader", reason="accelerate is not installed")
    data = TensorDataset(torch.zeros(n, 2), torch.arange(n))

    def loader(rank, **options):
        places = {"num_processes": size, "process_index": rank, "split_batches": split, **options}
        return accelerate.prepare_data_loader(DataLoader(data, 4), put_on_device=False, **places)

    for even in (True, False):
        shares = [loader(rank, even_batches=even) for rank in range(size)]
        found = [number for each in shares if next(iter(each), None) for number in numbers(each)]
        assert sorted(found) == list(range(n))


def test_points_are_counted_by_their_labels():
    """Five points, 15 rows of elements: three points are the share's own."""
    sets = {"x": torch.rand(15, 2), "place": torch.arange(15) // 3, "sizes": torch.full((5,), 3)}
    batch = Batch(sets, torch.arange(5) % 2, "batch 0")
    unpadded = Unpadded(None)
    unpadded.left = 12
    assert unpadded(batch) is batch and unpadded.left == 7
    assert unpadded(batch) is batch and unpadded.left == 2
    with pytest.raises(ArgumentError, match="do not have one row for each point"):
        unpadded(batch)
