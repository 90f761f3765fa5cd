"""Gram matrices of a layer's Jacobian, weighted by variances, against the dense one."""

import pytest
import torch

from bitbayes.model import DenseJacobian, MatrixJacobian
from bitbayes.model.jacobians import layer_jacobians
from bitbayes.structures import gram

SHAPES = [
    # points, groups, inputs, outputs, directions, positions
    (5, 1, 7, 4, 3, 1),
    (5, 1, 7, 4, 3, 6),
    (3, 2, 5, 3, 2, 4),
    (4, 3, 2, 1, 1, 9),
]


@pytest.fixture(params=SHAPES, ids=str)
def jacobian(request):
    n, groups, i, o, c, positions = request.param
    torch.manual_seed(0)
    inputs = torch.randn(n, groups, i, positions, dtype=torch.float64)
    return MatrixJacobian(inputs, torch.randn(n, groups, c, o, positions, dtype=torch.float64))


@pytest.fixture(params=[1, 20, 2**20], ids="chunks of {}".format)
def chunk(request, monkeypatch):
    monkeypatch.setattr(layer_jacobians, "CPU_CHUNK_NUMBERS", request.param)


@pytest.fixture(params=[-1000, 1000], ids=["formed", "pairs"])
def route(request, monkeypatch):
    monkeypatch.setattr(layer_jacobians, "SQUARE_COST_IN_PRODUCTS", request.param)
    return request.param > 0


def plain_jacobian(jacobian):
    """The Jacobian (n, c, groups, o, i) by one einsum."""
    return torch.einsum("ngit,ngcot->ncgoi", jacobian.inputs, jacobian.gradients)


@pytest.mark.parametrize("priors", [1, 3])
def test_weighted_gram_matrices_are_those_of_the_dense_jacobian(jacobian, chunk, route, priors):
    dense = plain_jacobian(jacobian).flatten(2)  # (n, c, P)
    weights = [torch.rand(dense.shape[2], dtype=torch.float64) + 0.1 for _ in range(priors)]
    expected = torch.stack([torch.einsum("ncp,p,ndp->ncd", dense, w, dense) for w in weights])
    torch.testing.assert_close(gram(jacobian, weights), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gram(DenseJacobian(dense), weights), expected, rtol=1e-12, atol=1e-12)
