"""The uniform noise that tuning uses when it is given no outliers."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(1))


@pytest.fixture(params=[True, False], ids=["mapping", "tensor"])
def words(request):
    """A Laplace fitted to words, its loader, and their inputs: in a mapping, or as they are."""
    ids, y = torch.randint(9, (30, 5)), torch.arange(30) % 3
    loader = [{"ids": ids, "labels": y}] if request.param else [(ids, y)]
    return bb.Laplace(WordModel()).fit(loader), loader, {"ids": ids} if request.param else ids


def test_tuning_on_integer_inputs_and_mappings_asks_for_outliers(words):
    bayes, loader, inputs = words
    before = bayes.predict_proba(inputs)
    with pytest.raises(ArgumentError, match="outliers"):
        bayes.tune(loader)
    assert bayes.prior_variance == 1.0
    assert torch.equal(bayes.predict_proba(inputs), before)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_integer_inputs_and_mappings_are_tuned_with_outliers_or_by_nll(words):
    bayes, loader, inputs = words
    outliers = inputs[:7] if isinstance(inputs, torch.Tensor) else [{"ids": inputs["ids"][:7]}]
    bayes.tune(loader, outliers=outliers)
    bayes.tune(loader, objective="nll")
