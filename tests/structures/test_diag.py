"""The diagonal structure: its curvature against the sum over points, and the Gaussian that follows."""

import pytest
import torch

from bitbayes.structures import DiagGaussian
from curvatures import points, sums


@pytest.mark.parametrize("k", [1, 3])
def test_the_curvature_of_float32_features_has_the_digits_of_float64(k):
    features, logits, hessians = points(k)
    expected = torch.einsum("nkk,nd->kd", hessians, features.double().square())
    found = sums("diag", features, logits)
    assert found.keys() == {"diagonal"}
    torch.testing.assert_close(found["diagonal"], expected, rtol=1e-13, atol=1e-13)


def test_each_weight_has_its_own_precision():
    gaussian = DiagGaussian(torch.tensor([[4.0, 1.0], [0.0, 9.0]]).double())
    assert gaussian.precisions(2.0).tolist() == [[6, 3], [2, 11]]
    assert float(gaussian.largest_precision(2.0)) == 11 and gaussian.size == 4
    determinant = gaussian.log_determinant(torch.tensor(2.0).double())
    torch.testing.assert_close(determinant.exp(), torch.tensor(6.0 * 3 * 2 * 11).double())
    x = torch.tensor([[2.0, 1.0]]).double()
    factors = gaussian.covariance(gaussian.coordinates(x), 2.0)
    torch.testing.assert_close(
        factors.weights,
        torch.tensor([[4 / 6 + 1 / 3, 4 / 2 + 1 / 11]], dtype=torch.float64),
        rtol=1e-12,
        atol=0,
    )
