"""Calibration errors against torchmetrics and cases worked by hand."""

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from bitbayes import metrics
from bitbayes.errors import ArgumentError
from metric_cases import EXACT, case, scores


@pytest.mark.parametrize("bins", [1, 7, 15, 100])
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("norm, ours", [("l1", metrics.ece), ("max", metrics.mce)])
def test_calibration_errors_agree_with_torchmetrics(bins, k, norm, ours):
    probs, labels = case(k=k)
    assert probs.max() < 1
    oracle = multiclass_calibration_error(probs, labels, k, n_bins=bins, norm=norm).item()
    # torchmetrics keeps bin sums in float32: n · 2⁻²⁴ per bin, relative to a bin's own count, is 500 · 6e-8.
    assert ours(probs, labels, bins=bins) == pytest.approx(oracle, abs=500 * 2**-24)


def test_confidence_of_exactly_one_is_in_the_top_bin():
    # Top bin: confidences 1, 1, 1 and 0.95 of which two are right: |0.5 − 0.9875|. Another bin: 0.55, wrong.
    probs = scores(1.0, 1.0, 1.0, 0.95, 0.55)
    labels = torch.tensor([0, 0, 1, 1, 1])
    per_bin = metrics.reliability(probs, labels)
    assert per_bin.count.tolist() == [0] * 8 + [1] + [0] * 5 + [4]
    assert per_bin.confidence[14].item() == pytest.approx(3.95 / 4, abs=EXACT)
    assert per_bin.accuracy[14].item() == 0.5
    assert metrics.ece(probs, labels) == pytest.approx((4 * (3.95 / 4 - 0.5) + 0.55) / 5, abs=EXACT)
    assert metrics.mce(probs, labels) == pytest.approx(0.55, abs=EXACT)
    assert metrics.ece(scores(1.0, 1.0), torch.tensor([0, 0])) == 0.0
    assert metrics.mce(scores(1.0, 1.0), torch.tensor([1, 1])) == 1.0


def test_a_rounding_error_above_one_is_in_the_top_bin_too():
    probs = torch.tensor([[1.0 + 2**-23, 0.0]])
    assert metrics.reliability(probs, torch.tensor([0])).count.tolist() == [0] * 14 + [1]


@pytest.mark.parametrize("bins", [2, 10, 15, 100])
def test_each_bin_holds_its_left_edge(bins):
    edges = [b / bins for b in range(bins) if b / bins >= 0.5]
    per_bin = metrics.reliability(scores(*edges), torch.zeros(len(edges), dtype=torch.long), bins=bins)
    assert per_bin.count.tolist() == [0] * (bins - len(edges)) + [1] * len(edges)
    assert per_bin.confidence[-len(edges) :].tolist() == edges
    assert per_bin.confidence[: -len(edges)].isnan().all()
    assert per_bin.accuracy[: -len(edges)].isnan().all()


@pytest.mark.parametrize("bins", [0, -1, 2.5])
def test_bad_bins_raise(bins):
    for f in (metrics.reliability, metrics.ece, metrics.mce):
        with pytest.raises(ArgumentError, match="bins="):
            f(scores(0.5), torch.tensor([0]), bins=bins)
