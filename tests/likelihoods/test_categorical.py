"""k logits: class differences, digits of the root, margins, scores and the values far away."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitbayes.likelihoods import Categorical, categorical
from bitbayes.logits import CovarianceFactors, LogitGaussian
from reference import KAPPA

LIKELIHOOD = Categorical()


def gaussian(n=6, k=4):
    weights, factor = torch.rand(n, k, dtype=torch.float64), torch.randn(k, k, dtype=torch.float64)
    factors = CovarianceFactors(weights, factor, torch.rand(n, dtype=torch.float64))
    return LogitGaussian(3 * torch.randn(n, k, dtype=torch.float64), factors, 1 + torch.rand(n).double())


@pytest.mark.parametrize("k", [2, 3, 10, 50])
def test_differences_are_orthonormal_and_blind_to_a_common_shift(k):
    t = Categorical().differences(k)
    assert t.shape == (k, k - 1) and t.dtype == torch.float64
    torch.testing.assert_close(t.T @ t, torch.eye(k - 1, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(t.sum(0), torch.zeros(k - 1, dtype=torch.float64), rtol=0, atol=1e-14)


@given(st.integers(0, 1000), st.sampled_from([2, 3, 10]))
def test_curvature_is_never_negative(seed, k):
    torch.manual_seed(seed)
    logits = 30 * torch.randn(12, k, dtype=torch.float64)
    assert float(torch.linalg.eigvalsh(Categorical().curvature(logits)).min()) > -1e-15


@pytest.mark.parametrize("size", [1, 30])
def test_the_root_keeps_its_digits_where_a_class_is_almost_certain(size):
    logits = torch.randn(20, 5, dtype=torch.float64) * size
    p = logits.softmax(1)
    others = torch.stack([p[:, [j for j in range(5) if j != i]].sum(1) for i in range(5)], dim=1)
    diagonal = Categorical().root(logits).square().sum(2)
    torch.testing.assert_close(diagonal, p * others, rtol=1e-13, atol=0)


def test_class_differences_of_rows_are_their_product_with_the_directions():
    rows = torch.randn(5, 7, dtype=torch.float64)
    found = categorical._in_class_differences(rows)
    torch.testing.assert_close(found, rows @ LIKELIHOOD.differences(7), rtol=0, atol=1e-14)


def test_the_score_is_the_log_sum_of_the_logits_of_probit():
    points = gaussian()
    average = torch.eye(4, dtype=torch.float64) - 1 / 4
    mean = points.mean @ average
    variance = (average @ points.covariance @ average).diagonal(dim1=1, dim2=2)
    expected = (mean / (1 + KAPPA * variance).sqrt()).exp().sum(1).log()
    torch.testing.assert_close(LIKELIHOOD.score(points), expected, rtol=1e-12, atol=1e-12)


def test_the_margin_is_the_gap_to_the_next_class_and_its_variance_the_mean_of_all_pairs():
    points = gaussian()
    margins = [sorted(row.tolist())[-1] - sorted(row.tolist())[-2] for row in points.mean]
    assert LIKELIHOOD.margins(points.mean).tolist() == pytest.approx(margins, abs=1e-14)
    own = points.covariance.diagonal(dim1=1, dim2=2)
    pairs = own[:, :, None] + own[:, None, :] - 2 * points.covariance
    found = LIKELIHOOD.scaled_margin_variance(points) * points.scale.square()
    torch.testing.assert_close(found, pairs.sum((1, 2)) / 12, rtol=1e-12, atol=0)


def test_far_away_all_classes_are_as_likely_and_the_largest_mean_decides_which_was_last():
    assert LIKELIHOOD.far_confidence(5) == 0.2
    assert LIKELIHOOD.far_labels(torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])).tolist() == [1, 0]


def test_combinations_are_without_the_common_shift():
    values = torch.randn(3, 4, 2, dtype=torch.float64)
    found = LIKELIHOOD.centre(values)
    torch.testing.assert_close(found.sum(1), torch.zeros(3, 2, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(found + values.mean(1, keepdim=True), values, rtol=0, atol=1e-14)
    points = gaussian()
    mean, _ = LIKELIHOOD.scaled_centred(points)
    expected = LIKELIHOOD.centre(points.mean)
    torch.testing.assert_close(mean * points.scale[:, None], expected, rtol=0, atol=1e-13)


def test_the_largest_probability_is_that_of_a_corner_of_the_ranges():
    low = 3 * torch.randn(20, 4, dtype=torch.float64)
    high = low + torch.rand(20, 4, dtype=torch.float64)
    corners = torch.stack([torch.where(torch.eye(4, dtype=torch.bool)[i], high, low) for i in range(4)])
    expected = corners.softmax(2).amax((0, 2))
    torch.testing.assert_close(LIKELIHOOD.largest_probability(low, high), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_labels_are_safe_to_use_whatever_was_given(dtype):
    labels = torch.tensor([0, 2, 100], dtype=dtype)
    found, ok, expected = LIKELIHOOD.valid_labels(labels, 3)
    assert found.tolist() == [0, 2, 2] and not ok and "from 0 to 2" in expected
