"""The structure without curvature: the prior itself."""

import pytest
import torch

import reference
from bitbayes.errors import ArgumentError
from curvatures import points, sums


def test_it_learns_nothing_from_data():
    features, logits, _ = points(3)
    assert sums("isotropic", features, logits) == {}


@pytest.mark.parametrize("k, bias", [(1, True), (3, False)])
def test_every_logit_has_the_priors_variance(k, bias):
    bayes, x, _ = reference.fitted(k, bias, structure="isotropic", prior_variance=0.7)
    squares = reference.head_features(bayes.model, x).square().sum(1)
    expected = 0.7 * squares[:, None, None] * torch.eye(k)
    torch.testing.assert_close(bayes.logits(x).covariance, expected, rtol=1e-12, atol=1e-12)


def test_it_has_no_evidence():
    bayes, _, _ = reference.fitted(3, structure="isotropic")
    with pytest.raises(ArgumentError, match=r"isotropic.*'full', 'kron' or 'diag'"):
        bayes.log_evidence()
