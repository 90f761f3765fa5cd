"""Every structure over the last layer's weights, fitted, with what a dense reference needs."""

import itertools

import pytest
import torch

import reference
from reference import STRUCTURES

EVERY = [
    pytest.param(case, k, bias, id=f"{case}-{k}-{'bias' if bias else 'plain'}")
    for case, (k, bias) in itertools.product(STRUCTURES, [(1, True), (2, True), (3, False), (10, True)])
]


VARIANCES = (0.3, 83_000.0)


def fitted(case, k, bias, prior_variance=1.0, n=30):
    """A fitted Laplace, and what the reference needs: weights, features and labels."""
    bayes, x, y = reference.fitted(k, bias, n=n, prior_variance=prior_variance, structure=case)
    return bayes, (reference.head_weights(bayes.model), reference.head_features(bayes.model, x), y)


def close(actual, expected, tolerance=1e-8):
    """Assert equality to `tolerance` of the largest entry."""
    atol = tolerance * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)
