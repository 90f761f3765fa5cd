"""Preferences: labels, and the rewards of Gaussians over one logit. All else is that of one logit."""

import pytest
import torch

from bitbayes.errors import ArgumentError, DataError
from bitbayes.likelihoods import Bernoulli, Preference
from bitbayes.likelihoods.preference import Reward
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.model import DeferredChecks

LIKELIHOOD = Preference()


def checked(labels, n):
    with DeferredChecks() as checks:
        return LIKELIHOOD.check_labels(labels, (n, 1), "batch 7", checks)


@pytest.mark.parametrize("kind", [torch.long, torch.bool, torch.float64, torch.uint8])
def test_labels_say_whether_the_first_is_preferred(kind):
    assert checked(torch.tensor([1, 0, 1]).to(kind), 3).tolist() == [1, 0, 1]


@pytest.mark.parametrize("labels", [[0.5, 1.0], [2, 0], [-1, 1]])
def test_ties_and_other_labels_raise(labels):
    with pytest.raises(DataError, match=r"batch 7: .*expected 1 \(the first is preferred\) and 0 .*ties out"):
        checked(torch.tensor(labels), 2)


def test_losses_and_curvature_are_those_of_one_logit():
    logits, labels = torch.randn(9, 1, dtype=torch.float64), torch.arange(9) % 2
    assert torch.equal(LIKELIHOOD.losses(logits, labels), Bernoulli().losses(logits, labels))
    assert torch.equal(LIKELIHOOD.curvature(logits), Bernoulli().curvature(logits))
    assert LIKELIHOOD.takes(1) and not LIKELIHOOD.takes(2)


def test_rewards_are_the_means_and_deviations_of_all_parts():
    def gaussian(mean, variance, scale):
        factors = CovarianceFactors(torch.tensor([[variance]]), None, torch.zeros(1))
        return LogitGaussian(torch.tensor([[mean]]), factors, torch.tensor([scale]))

    found = Reward.joined([gaussian(1.0, 4.0, 1.0), gaussian(-2.0, 9.0, 8.0)])
    assert found.mean.tolist() == [1.0, -16.0] and found.deviation.tolist() == [2.0, 24.0]


def test_there_are_no_rays_of_pairs():
    with pytest.raises(ArgumentError, match="a preference is between two"):
        LIKELIHOOD.require_rays()
    Bernoulli().require_rays()
