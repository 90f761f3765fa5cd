"""Regression: losses and curvature in units of the noise, labels of one or several outputs, the score."""

import pytest
import torch

from bitbayes.errors import ArgumentError, DataError
from bitbayes.likelihoods import Gaussian
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.model import DeferredChecks
from reference import autograd_hessian

LIKELIHOOD = Gaussian()


def checked(labels, shape):
    with DeferredChecks() as checks:
        return LIKELIHOOD.check_labels(labels, shape, "batch 7", checks)


def outputs_and_labels(k, n=9):
    return torch.randn(n, k, dtype=torch.float64), torch.randn(n, k, dtype=torch.float64)


@pytest.mark.parametrize("k", [1, 3])
def test_curvature_and_root_are_those_of_the_loss(k):
    outputs, labels = outputs_and_labels(k)
    own = lambda f, y: LIKELIHOOD.losses(f[None], y[None])[0]  # noqa: E731
    expected = torch.stack([autograd_hessian(own)(f, y) for f, y in zip(outputs, labels, strict=True)])
    t, root = LIKELIHOOD.differences(k), LIKELIHOOD.root(outputs)
    for found in (t @ LIKELIHOOD.curvature(outputs) @ t.T, root @ root.mT):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    total = t @ LIKELIHOOD.total_curvature(outputs) @ t.T
    torch.testing.assert_close(total, expected.sum(0), rtol=0, atol=1e-13)
    torch.testing.assert_close(LIKELIHOOD.diagonal(outputs), torch.ones_like(outputs), rtol=0, atol=0)


@pytest.mark.parametrize("k", [1, 3])
def test_losses_are_half_the_squared_errors(k):
    outputs, labels = outputs_and_labels(k)
    expected = [0.5 * float(((y - f) ** 2).sum()) for f, y in zip(outputs, labels, strict=True)]
    torch.testing.assert_close(LIKELIHOOD.losses(outputs, labels), torch.tensor(expected).double())
    errors = LIKELIHOOD.squared_errors(outputs, labels)
    assert errors.shape == (k,)
    assert float(errors.sum()) == pytest.approx(2 * sum(expected), rel=1e-13)


def test_drawn_gradients_have_the_curvature_on_average():
    outputs = torch.zeros(200_000, 2, dtype=torch.float64)
    drawn = LIKELIHOOD.draw(outputs, torch.Generator().manual_seed(0))
    error = 5 * 2**0.5 / len(drawn) ** 0.5  # the deviation of a squared normal number is √2
    assert float((drawn.T @ drawn / len(drawn) - torch.eye(2)).abs().max()) < error


def test_labels_are_rows_of_real_numbers():
    for labels in (torch.ones(3), torch.ones(3, 1), torch.ones(3, dtype=torch.int32)):
        assert checked(labels, (3, 1)).shape == (3, 1)
    assert checked(torch.ones(3, dtype=torch.long), (3, 1)).dtype == torch.float64
    assert checked(torch.ones(3, 2, dtype=torch.float16), (3, 2)).shape == (3, 2)


@pytest.mark.parametrize(
    "labels, k, says",
    [
        (torch.ones(3), 2, r"batch 7: .*shape \(3,\); expected \(3, 2\), one for each output"),
        (torch.ones(3, 1), 2, r"shape \(3, 1\); expected \(3, 2\)"),
        (torch.ones(2, 3), 3, r"shape \(2, 3\); expected \(3, 3\)"),
        (torch.tensor([0.0, float("nan"), 1.0]), 1, "nan.*finite real numbers"),
        (torch.tensor([0.0, float("inf"), 1.0]), 1, "inf.*finite real numbers"),
        (torch.ones(3, dtype=torch.bool), 1, "bool.*finite real numbers"),
        (torch.ones(3, dtype=torch.complex64), 1, "complex64.*finite real numbers"),
    ],
)
def test_labels_that_are_no_targets_are_refused(labels, k, says):
    with pytest.raises(DataError, match=says):
        checked(labels, (3, k))


def test_the_score_is_half_the_mean_logarithm_of_the_precisions():
    n, k = 6, 3
    factors = CovarianceFactors(torch.rand(n, k).double(), None, torch.zeros(n).double())
    gaussian = LogitGaussian(torch.randn(n, k).double(), factors, 1 + torch.rand(n).double())
    expected = -gaussian.variances().log().mean(1) / 2
    torch.testing.assert_close(LIKELIHOOD.score(gaussian), expected, rtol=1e-13, atol=1e-13)


def test_what_only_classifiers_have_names_what_there_is():
    gaussian = LogitGaussian(
        torch.zeros(1, 2), CovarianceFactors(torch.ones(1, 2), None, torch.zeros(1)), torch.ones(1)
    )
    for call in (
        lambda: LIKELIHOOD.log_probabilities(torch.zeros(1, 2)),
        lambda: LIKELIHOOD.probabilities(torch.zeros(1, 2)),
        lambda: LIKELIHOOD.drop_in(torch.ones(1, 2)),
        lambda: LIKELIHOOD.margins(torch.zeros(1, 2)),
        lambda: LIKELIHOOD.scaled_margin_variance(gaussian),
    ):
        with pytest.raises(ArgumentError, match=r"'gaussian' predicts values.*`predict` or `interval`"):
            call()
