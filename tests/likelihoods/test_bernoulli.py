"""One logit: digits where p is almost 1, margins, scores and the values far away."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitbayes.likelihoods import Bernoulli
from bitbayes.logits import CovarianceFactors, LogitGaussian
from reference import KAPPA

LIKELIHOOD = Bernoulli()


def one_logit(n=9, size=3.0):
    """A Gaussian in units of its scale, and the same numbers as mean and variance (n,)."""
    mean, variance = size * torch.randn(n, 1, dtype=torch.float64), torch.rand(n, 1, dtype=torch.float64)
    scale = 1 + torch.rand(n, dtype=torch.float64)
    factors = CovarianceFactors(variance, None, torch.zeros_like(scale))
    gaussian = LogitGaussian(mean, factors, scale)
    return gaussian, mean[:, 0] * scale, variance[:, 0] * scale.square()


def test_one_logit_is_its_own_difference():
    assert torch.equal(Bernoulli().differences(1), torch.ones(1, 1, dtype=torch.float64))


@given(st.floats(-700, 700))
def test_one_logits_curvature_keeps_its_digits_where_p_is_almost_1(f):
    logits = torch.tensor([[f]], dtype=torch.float64)
    expected = math.exp(-abs(f)) / (1 + math.exp(-abs(f))) ** 2
    assert float(Bernoulli().curvature(logits)) == pytest.approx(expected, rel=1e-12, abs=0)


def test_the_score_is_the_log_sum_of_two_symmetric_logits():
    gaussian, mean, variance = one_logit()
    z = mean / (1 + KAPPA * variance).sqrt()
    expected = ((z / 2).exp() + (-z / 2).exp()).log()
    torch.testing.assert_close(LIKELIHOOD.score(gaussian), expected, rtol=1e-13, atol=1e-13)


def test_the_margin_is_the_size_of_the_logit_and_has_its_variance():
    gaussian, mean, variance = one_logit()
    assert torch.equal(LIKELIHOOD.margins(mean[:, None]), mean.abs())
    found = LIKELIHOOD.scaled_margin_variance(gaussian) * gaussian.scale.square()
    torch.testing.assert_close(found, variance, rtol=1e-14, atol=0)


def test_far_away_both_classes_are_as_likely_and_the_sign_decides_which_was_last():
    assert LIKELIHOOD.far_confidence(1) == 0.5
    assert LIKELIHOOD.far_labels(torch.tensor([[-2.0], [3.0]])).tolist() == [0, 1]


def test_one_logit_is_its_own_combination():
    gaussian, mean, variance = one_logit()
    found, spread = LIKELIHOOD.scaled_centred(gaussian)
    torch.testing.assert_close(found[:, 0] * gaussian.scale, mean, rtol=1e-14, atol=0)
    torch.testing.assert_close(spread[:, 0] * gaussian.scale.square(), variance, rtol=1e-14, atol=0)
    assert torch.equal(LIKELIHOOD.centre(mean[:, None]), mean[:, None])


def test_the_largest_probability_in_a_range_is_at_one_of_its_ends():
    low = torch.randn(50, 1, dtype=torch.float64)
    high = low + torch.rand(50, 1, dtype=torch.float64)
    inside = low + (high - low) * torch.linspace(0, 1, 11, dtype=torch.float64)
    expected = LIKELIHOOD.probabilities(inside[:, :, None]).amax((1, 2))
    found = LIKELIHOOD.largest_probability(low, high)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


def test_labels_that_are_not_valid_are_still_indices():
    """On a GPU another index would crash the program before it can say what is wrong."""
    labels, valid, _ = Bernoulli().valid_labels(torch.tensor([-3, 0, 1, 7]), 1)
    assert labels.tolist() == [0, 0, 1, 1] and not bool(valid)
