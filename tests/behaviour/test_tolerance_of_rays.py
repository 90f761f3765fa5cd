"""A tolerance makes alpha smaller and hardly changes the limit; the result's type says approximate."""

import pytest
import torch

import bitbayes as bb
from bitbayes.errors import ArgumentError
from bitbayes.rays import ApproximateCertificate, ApproximateLimit
from bitbayes.toys import digits, digits_lenet
from ray_cases import laplace


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("name", ["mlp", "convnet", "residual"])
def test_a_tolerance_makes_alpha_smaller_and_keeps_the_limit(name, layers):
    bayes, x = laplace(name, 3, layers=layers, prior_variance=0.1)
    exact, rough = bayes.certify(x), bayes.certify(x, tolerance=1e-2)
    assert type(rough) is ApproximateCertificate and type(exact) is not ApproximateCertificate
    # A single alpha may also grow a little: ignored slopes are missing in the slopes of later units.
    assert (rough.alpha <= 1.05 * exact.alpha).double().mean() > 0.9
    assert rough.alpha.mean() < 0.7 * exact.alpha.mean()
    moved = (rough.limit - exact.limit).abs()
    assert moved.mean() < 0.01 and moved.max() < 0.1
    limit = bayes.limit(x, tolerance=1e-2)
    assert type(limit) is ApproximateLimit
    torch.testing.assert_close(limit.confidence, rough.limit)


def test_a_tolerance_on_the_shipped_lenet():
    """A few rows of nearly zero weights make the exact alpha very large."""
    data = digits()
    bayes = bb.Laplace(digits_lenet()).fit([(data.test_images[:100], data.test_labels[:100])])
    x = data.test_images[200:212]
    exact, rough = bayes.certify(x), bayes.certify(x, tolerance=1e-2)
    assert rough.alpha.median() < 0.1 * exact.alpha.median()
    torch.testing.assert_close(rough.limit, exact.limit, rtol=0, atol=0.02)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_invalid_tolerances_raise(tolerance):
    bayes, x = laplace("mlp", 3)
    with pytest.raises(ArgumentError, match="tolerance"):
        bayes.certify(x, tolerance=tolerance)
