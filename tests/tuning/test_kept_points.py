"""Of very many points tuning keeps some, drawn evenly from all."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bitbayes.tuning.points import kept_points


class Numbers(torch.Tensor):
    """A family that is only the numbers of its points."""

    def rows(self, which):
        return self[which]

    @classmethod
    def joined(cls, families):
        return torch.cat(families)


class Posterior(SimpleNamespace):
    """Gives the numbers that are chosen of each batch, and counts what it was asked for."""

    asked = 0

    def logits_by_prior(self, batches, choose=None):
        for numbers in batches:
            chosen = None if choose is None else choose(len(numbers))
            numbers = numbers if chosen is None else numbers[chosen]
            self.asked += len(numbers)
            yield SimpleNamespace(labels=numbers % 7, root_kernel=numbers.sqrt()), numbers


def kept(most, batches=64, size=500, rows=700):
    posterior = Posterior(most_points=most, rows_per_step=rows, model=nn.Linear(1, 1))
    numbers = torch.arange(batches * size).as_subclass(Numbers)
    return posterior, numbers.split(size), kept_points(posterior, None, numbers.split(size))


def test_all_are_kept_where_they_fit():
    for most in (None, 32_000):
        _, groups, found = kept(most)
        assert all(torch.equal(a, b.family) for a, b in zip(groups, found, strict=True))


@pytest.mark.parametrize("most", [31_999, 5000, 1000])
def test_no_batch_is_preferred(most):
    posterior, _, found = kept(most)
    # Those that are dropped later are no more than those that are kept in the end, for each halving.
    assert posterior.asked < most * (1 + math.log2(32_000 / most) + 1)
    numbers = torch.cat([each.family for each in found]).as_subclass(torch.Tensor)
    assert most / 3 < len(numbers) <= most and len(numbers.unique()) == len(numbers)
    assert all(len(each.family) <= 700 for each in found)
    for each in found:  # labels and kernels of the same points
        assert torch.equal(each.labels, each.family % 7) and torch.equal(each.root_kernel, each.family.sqrt())
    # Sixteen parts of the data have as many each, up to five standard deviations of a binomial number.
    counts = torch.bincount(numbers // 2000, minlength=16)
    share = len(numbers) / 32_000
    assert float((counts - 2000 * share).abs().max()) < 5 * math.sqrt(2000 * share * (1 - share))
