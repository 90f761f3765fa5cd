"""The batches that tuning reads."""

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import reference
from bitbayes.errors import DataError, EmptyLoaderError
from bitbayes.model import run_levels
from bitbayes.tuning import TuningRequest
from classifiers import trained


def request(bayes, loader, residual=True):
    kernel = bayes.known_residual if residual else None
    return TuningRequest(bayes.posterior, kernel, bayes.settings, "auto", loader, progress=False)


@pytest.mark.parametrize("residual", [False, True])
def test_batches_are_measured_at_the_levels_of_the_residual(residual):
    bayes, (x, y) = trained(3, residual=True)
    seen = []
    found = list(request(bayes, reference.loader(x, y, 25), residual).validation_batches(seen.append))
    assert [len(each) for each in found] == [25, 25, 10] and torch.equal(torch.cat(seen), x)
    assert torch.equal(torch.cat([each.labels for each in found]), y)
    if residual:
        rows = [run_levels(bayes.model, each.observer.levels, each.inputs) for each in found]
        measured = [each.observer.look(row) for each, row in zip(found, rows, strict=True)]
        torch.testing.assert_close(torch.cat(measured), bayes.known_residual.distances(x))
    else:
        assert all(each.observer is None for each in found)


def test_points_that_a_sampler_repeats_are_left_out():
    bayes, (x, y) = trained(3, n=7)
    data = TensorDataset(x, y)
    shares = [DataLoader(data, 3, sampler=DistributedSampler(data, 2, r, shuffle=False)) for r in (0, 1)]
    found = [[each.labels for each in request(bayes, share).validation_batches()] for share in shares]
    assert [int(sum(map(len, each))) for each in found] == [4, 3]
    assert torch.equal(torch.cat(found[1]), y[1::2])


def test_loaders_without_batches_are_refused():
    bayes, (x, _) = trained(3)
    with pytest.raises(EmptyLoaderError, match="empty"):
        list(request(bayes, []).validation_batches())
    with pytest.raises(DataError, match="expected a loader"):
        list(request(bayes, x).validation_batches())
