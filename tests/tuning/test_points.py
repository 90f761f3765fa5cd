"""What tuning keeps of the data: all points, or some of very many, drawn evenly from all."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bitbayes as bb
import reference
from bitbayes.prior import Prior
from bitbayes.tuning import TuningRequest, kept_points
from bitbayes.tuning import points as tuning_points
from bitbayes.tuning.noise import NoiseLike
from bitbayes.tuning.points import Points
from classifiers import trained


class Numbers(torch.Tensor):
    """Logits that are only the numbers of its points."""

    @property
    def scale(self):
        return self

    def select(self, which):
        return self[which]

    @classmethod
    def joined(cls, parts):
        return torch.cat(parts)


class Posterior(SimpleNamespace):
    """Gives the numbers that are chosen of each batch, and counts what it was asked for."""

    asked = 0

    def logits_by_prior(self, batches, choose=None):
        for numbers in batches:
            chosen = None if choose is None else choose(len(numbers))
            numbers = numbers if chosen is None else numbers[chosen]
            self.asked += len(numbers)
            distances = numbers.sqrt()[:, None].expand(-1, 2)
            yield SimpleNamespace(labels=numbers % 7, distances=distances, weights=None), numbers


def kept(most, batches=64, size=500, rows=700):
    posterior = Posterior(most_points=most, rows_per_step=rows, model=nn.Linear(1, 1))
    numbers = torch.arange(batches * size).as_subclass(Numbers)
    return posterior, numbers.split(size), kept_points(posterior, numbers.split(size))


def test_all_are_kept_in_their_order_where_they_fit():
    for most in (None, 32_000):
        posterior, groups, found = kept(most)
        assert posterior.asked == 32_000 and all(each.share == 1 for each in found)
        assert torch.equal(torch.cat([each.by_prior for each in found]), torch.cat(groups))
        assert all(len(each.by_prior) <= 700 for each in found)


@pytest.mark.parametrize("most", [31_999, 5000, 1000])
def test_no_batch_is_preferred(most):
    posterior, _, found = kept(most)
    # Those that are dropped later are no more than those that are kept in the end, for each halving.
    assert posterior.asked < most * (1 + math.log2(32_000 / most) + 1)
    numbers = torch.cat([each.by_prior for each in found]).as_subclass(torch.Tensor)
    assert most / 3 < len(numbers) <= most and len(numbers.unique()) == len(numbers)
    assert all(len(each.by_prior) <= 700 for each in found)
    for each in found:  # labels and distances of the same points
        assert torch.equal(each.labels, each.by_prior % 7)
        assert torch.equal(each.distances, each.by_prior.sqrt()[:, None].expand(-1, 2))
    # Sixteen parts of the data have as many each, up to five standard deviations of a binomial number.
    counts = torch.bincount(numbers // 2000, minlength=16)
    share = len(numbers) / 32_000
    assert float((counts - 2000 * share).abs().max()) < 5 * math.sqrt(2000 * share * (1 - share))


def validation_points(bayes, loader):
    request = TuningRequest(bayes.posterior, bayes.known_residual, bayes.settings, "auto", loader)
    return kept_points(bayes.posterior, request.validation_batches())


@pytest.mark.parametrize("rows", [1000, 25])
@pytest.mark.parametrize("batch", [60, 30, 20, 7])
def test_batches_that_are_joined_have_all_points_in_their_order(batch, rows, monkeypatch):
    bayes, (x, y) = trained(3)
    monkeypatch.setattr(type(bayes.posterior), "rows_per_step", rows)
    found = validation_points(bayes, reference.loader(x, y, batch))
    assert torch.equal(torch.cat([each.labels for each in found]), y)
    means = torch.cat([each.by_prior.at(Prior(1.0)).mean for each in found])
    torch.testing.assert_close(means, bayes.model(x).detach(), rtol=1e-12, atol=1e-12)
    distances = torch.cat([each.distances for each in found])
    torch.testing.assert_close(distances, bayes.known_residual.distances(x), rtol=1e-12, atol=0)


@pytest.mark.parametrize("structure, k", [("full", 1), ("kron", 3), ("full", 3), ("diag", 3)])
def test_one_number_is_kept_for_each_point_and_feature(structure, k):
    """And the mean logits, a scale and a label; whatever the size of batches."""
    torch.manual_seed(0)
    n, width = 600, 40
    model, x, y = nn.Linear(width, k), torch.randn(n, width), torch.arange(n) % max(k, 2)
    bayes = bb.Laplace(model, structure=structure, residual=False).fit([(x, y)])
    kept = {}
    for group in validation_points(bayes, reference.loader(x, y, 70)):
        logits = group.by_prior
        for each in (logits.coordinates, logits.scaled_mean, logits.scale, group.labels):
            kept[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
    assert sum(kept.values()) == n * (4 * (width + 1 + k + 1) + 8)


def some_points(n, share=1.0):
    numbers = torch.arange(n).as_subclass(Numbers)
    return Points(numbers, numbers % 7, numbers.sqrt()[:, None], share)


def test_joined_and_selected_points_know_which_share_of_the_data_they_are():
    parts = [some_points(4, 0.25), some_points(3, 0.25)]
    joined = Points.joined(parts)
    assert joined.share == 0.25 and joined.by_prior.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert joined.labels.tolist() == [0, 1, 2, 3, 0, 1, 2]
    some = joined.select(torch.tensor([5, 3]))
    assert some.share == 0.25 and some.by_prior.tolist() == [1, 3]


def test_where_another_process_has_dropped_more_points_as_many_are_dropped_here(monkeypatch):
    """This one has a half of its points, in two groups, and the other a quarter."""
    mine, noise = [some_points(4000, 0.5), some_points(2000, 0.5)], NoiseLike.of(torch.randn(4, 2))

    def agree(task, work, facts):
        points = work()
        return points, [facts(points), ([0.25], noise)]

    monkeypatch.setattr(tuning_points, "current_processes", lambda: SimpleNamespace(size=2, agree=agree))
    found, noises = tuning_points.shared_points(lambda: "tune", lambda: mine, lambda: noise)
    assert len(noises) == 2 and [each.share for each in found] == [0.25, 0.25]
    for before, after in zip(mine, found, strict=True):
        n = len(before.by_prior)
        assert abs(len(after.by_prior) - n / 2) < 5 * math.sqrt(n / 4)  # standard deviations of a binomial
        assert len(after.by_prior.unique()) == len(after.by_prior)
        assert torch.equal(after.labels, after.by_prior % 7)
