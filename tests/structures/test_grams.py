"""Gram matrices of a layer's Jacobian, weighted by variances, against the dense one."""

import pytest
import torch

from bitbayes.model import DenseJacobian
from bitbayes.structures import gram
from dense import plain_jacobian


@pytest.mark.parametrize("priors", [1, 3])
def test_weighted_gram_matrices_are_those_of_the_dense_jacobian(jacobian, chunk, route, priors):
    dense = plain_jacobian(jacobian).flatten(2)  # (n, c, P)
    weights = [torch.rand(dense.shape[2], dtype=torch.float64) + 0.1 for _ in range(priors)]
    expected = torch.stack([torch.einsum("ncp,p,ndp->ncd", dense, w, dense) for w in weights])
    torch.testing.assert_close(gram(jacobian, weights), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gram(DenseJacobian(dense), weights), expected, rtol=1e-12, atol=1e-12)
