"""Directions and strengths of the classes' curvature, whose inverse is the dense one."""

import math

import pytest
import torch

from bitbayes.structures.class_curvature import ClassCurvature
from curvatures import of_probabilities, probabilities, smallest_eigenvalue


def class_hessian(p):
    """B = Σₙ(diag pₙ − pₙpₙᵀ), dense."""
    return torch.diag(p.sum(0)) - p.T @ p


@pytest.mark.parametrize("gain", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("rank", [1, 8])
def test_the_diagonal_is_kept_and_nothing_becomes_negative(rank, gain):
    p = probabilities(400, 50, gain)
    kept = of_probabilities(p, rank)
    classes = ClassCurvature.matched(kept.sums, kept.diagonal, kept.directions)
    s, rows = classes.strengths, classes.directions
    found = torch.diag(s) - torch.outer(s, s) / s.sum() - rows.T @ rows
    exact = class_hessian(p)
    assert smallest_eigenvalue(found) > -1e-12 * float(s.max())
    assert float(found.sum(1).abs().max()) < 1e-10
    # Where directions had to give way, so that nothing became negative, the diagonal is larger than it was.
    assert bool((found.diagonal() > exact.diagonal() * (1 - 1e-9)).all())
    if gain < 6:
        torch.testing.assert_close(found.diagonal(), exact.diagonal(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("gain, tolerance", [(0.5, 1e-3), (2.0, 0.02), (4.0, 0.1)])
def test_variances_are_close_where_the_rank_does_not_suffice(gain, tolerance):
    """Less the second moments alone, which a sketch of eight rows cannot keep, they would be far off."""
    p = probabilities(2000, 50, gain)
    kept = of_probabilities(p, 8, 100)
    assert kept.relative_error > 0.001
    classes = ClassCurvature.matched(kept.sums, kept.diagonal, kept.directions)
    values, vectors = torch.linalg.eigh(class_hessian(p))
    values, vectors = values[1:], vectors[:, 1:]  # without the common shift
    for ratio in (0.01, 0.1, 1.0, 100.0):
        exact = vectors.square() @ (1 + ratio * values).reciprocal()
        found = classes.inverse(ratio)
        assert float((found.diagonal() / exact - 1).abs().max()) < tolerance
        assert math.isclose(
            float(found.log_determinant), float((ratio * values).log1p().sum()), rel_tol=tolerance
        )


@pytest.mark.parametrize("ratio", [1e-9, 0.1, 10.0, 1e9])
def test_the_inverse_over_the_classes_is_the_dense_one(ratio):
    p = probabilities(40, 9, 2.0)
    kept = of_probabilities(p, 4)
    classes = ClassCurvature.matched(kept.sums, kept.diagonal, kept.directions)
    s, rows = classes.strengths, classes.directions
    b = torch.diag(s) - torch.outer(s, s) / s.sum() - rows.T @ rows
    values, vectors = torch.linalg.eigh(b)
    shift = torch.full((9, 1), 1 / 3, dtype=torch.float64)
    own = vectors[:, 1:]  # B's smallest eigenvalue, 0, is that of the common shift
    torch.testing.assert_close(vectors[:, :1].abs(), shift, rtol=0, atol=1e-7)
    dense = own @ torch.diag((1 + ratio * values[1:]).reciprocal()) @ own.T
    inverse = classes.inverse(ratio)
    torch.testing.assert_close(inverse.diagonal(), dense.diagonal(), rtol=1e-9, atol=0)
    combinations = torch.randn(5, 9, dtype=torch.float64)
    combinations -= combinations.mean(1, keepdim=True)
    expected = torch.einsum("mi,ij,mj->m", combinations, dense, combinations)
    torch.testing.assert_close(inverse.forms(combinations), expected, rtol=1e-9, atol=0)
    determinant = (ratio * values[1:]).log1p().sum()
    torch.testing.assert_close(inverse.log_determinant, determinant, rtol=1e-9, atol=1e-13)
    assert math.isclose(classes.largest_eigenvalue(), float(values[-1]), rel_tol=1e-10)
