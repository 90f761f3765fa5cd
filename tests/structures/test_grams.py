"""Gram matrices of a layer's Jacobian, weighted by variances, against the dense one."""

import pytest
import torch

from bitbayes.model import DenseJacobian
from bitbayes.structures import gram, gram_root
from dense import plain_jacobian


@pytest.mark.parametrize("priors", [1, 3])
def test_weighted_gram_matrices_are_those_of_the_dense_jacobian(jacobian, chunk, route, priors):
    dense = plain_jacobian(jacobian).flatten(2)  # (n, c, P)
    weights = [torch.rand(dense.shape[2], dtype=torch.float64) + 0.1 for _ in range(priors)]
    expected = torch.stack([torch.einsum("ncp,p,ndp->ncd", dense, w, dense) for w in weights])
    torch.testing.assert_close(gram(jacobian, weights), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gram(DenseJacobian(dense), weights), expected, rtol=1e-12, atol=1e-12)


def test_a_root_times_its_transpose_is_the_matrix_also_where_it_is_singular():
    rows = torch.randn(4, 3, 5, dtype=torch.float64)
    rows[1] = 0
    rows[2, 1] = 2 * rows[2, 0]  # of rank two
    matrices = rows @ rows.mT
    root = gram_root(matrices, 1e-14)
    assert torch.equal(root, root.tril())
    torch.testing.assert_close(root @ root.mT, matrices, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_matrix_that_is_not_finite_has_no_root_and_the_others_have_theirs(value):
    rows = torch.randn(4, 3, 5, dtype=torch.float64)
    matrices = rows @ rows.mT
    expected = gram_root(matrices, 1e-14)
    for place in ((0, 0), (2, 1)):
        matrices[1] = rows[1] @ rows[1].mT
        matrices[(1, *place)] = value
        root = gram_root(matrices, 1e-14)
        assert bool(root[1].isnan().all())
        assert torch.equal(root[[0, 2, 3]], expected[[0, 2, 3]])
