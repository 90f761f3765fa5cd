"""The full structure: its curvature against the sum over points, in any pieces."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.likelihoods import likelihood_for
from curvatures import points, sums


@pytest.mark.parametrize("k", [1, 3])
def test_the_curvature_of_float32_features_has_the_digits_of_float64(k):
    features, logits, hessians = points(k)
    t = likelihood_for(k).differences(k)
    wide = features.double()
    expected = torch.einsum("nab,nd,ne->adbe", t.T @ hessians @ t, wide, wide)
    found = sums("full", features, logits)
    assert found.keys() == {"hessian"}
    expected = expected.reshape(expected.shape[0] * 6, -1)
    torch.testing.assert_close(found["hessian"], expected, rtol=1e-13, atol=1e-13)


def test_a_full_curvature_is_summed_in_pieces(monkeypatch):
    torch.manual_seed(0)
    head, x, y = nn.Linear(5, 4).double(), torch.randn(60, 5).double(), torch.arange(60) % 4
    whole = bb.Laplace(head, structure="full").fit([(x, y)]).logits(x).covariance
    monkeypatch.setattr("bitbayes.structures.full.NUMBERS_PER_STEP", 7 * (9 + 6))
    pieces = bb.Laplace(head, structure="full").fit([(x, y)]).logits(x).covariance
    torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=0)
