"""A layer's Jacobian in factors: its products, by either way and in any chunks, are the plain sums."""

import pytest
import torch

from bitbayes.model import DenseJacobian, from_pairs
from bitbayes.model.jacobians import layer_jacobians
from bitbayes.structures import DiagCurvature
from dense import plain_jacobian


def test_the_dense_jacobian_is_the_sum_over_positions(jacobian):
    expected = plain_jacobian(jacobian).flatten(2)
    torch.testing.assert_close(jacobian.dense(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3, None])
def test_columns_are_those_of_the_dense_jacobian(jacobian, chunk, count):
    """A few of them, which are formed alone, and all."""
    dense = jacobian.dense()
    chosen = torch.randperm(dense.shape[2])[:count].sort().values
    for each in (jacobian, DenseJacobian(dense)):
        torch.testing.assert_close(
            each.columns(chosen).derivatives, dense[:, :, chosen], rtol=1e-12, atol=1e-12
        )
    assert jacobian[:0].columns(chosen).derivatives.shape == (0, dense.shape[1], len(chosen))


def test_the_diagonal_curvature_is_the_sum_of_squares(jacobian, chunk, route):
    assert jacobian.few_positions == route
    expected = plain_jacobian(jacobian).square().sum((0, 1)).flatten()
    torch.testing.assert_close(DiagCurvature.of_jacobian(jacobian).diagonal, expected, rtol=1e-12, atol=1e-12)


def test_chunks_take_everything_once_and_keep_within_the_limit(jacobian, chunk):
    n, _, _, o, _ = jacobian.gradients.shape
    seen = torch.zeros(n, o)
    for points, outputs in jacobian.chunks():
        seen[points, outputs] += 1
        part = jacobian.part(points, outputs).dense()
        assert part.numel() <= layer_jacobians.CPU_CHUNK_NUMBERS or (
            len(part) == 1 and outputs.stop - outputs.start == 1
        )
    assert bool((seen == 1).all())


def test_a_symmetric_matrix_is_made_from_its_upper_pairs():
    matrix = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    first, second = torch.triu_indices(3, 3)
    assert torch.equal(from_pairs(matrix[first, second], 3), matrix)
