"""The calibration errors of classes against torchmetrics and a loop."""

import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from bitbayes import metrics
from metric_cases import EXACT, case


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("bins", [1, 7, 15])
def test_each_class_agrees_with_torchmetrics(k, bins):
    probs, labels = case(k=k)
    found = metrics.ece_per_class(probs, labels, bins)
    assert found.shape == (k,) and found.dtype == torch.float64
    for i in range(k):
        oracle = binary_calibration_error(probs[:, i].contiguous(), (labels == i).int(), n_bins=bins)
        # torchmetrics keeps bin sums in float32.
        assert found[i].item() == pytest.approx(oracle.item(), abs=500 * 2**-24)
    assert metrics.classwise_ece(probs, labels, bins) == pytest.approx(found.mean().item(), abs=EXACT)


def test_each_class_is_a_loop_over_bins_with_weights():
    probs, labels = case(n=100, k=3)
    probs[0] = torch.tensor([1.0, 0.0, 0.0])  # in the top bin and in the lowest ones
    weights = torch.arange(100.0).double()
    for i, found in enumerate(metrics.ece_per_class(probs, labels, 5, weights=weights).tolist()):
        gaps = [0.0] * 5
        for p, label, weight in zip(probs[:, i].tolist(), labels.tolist(), weights.tolist(), strict=True):
            gaps[min(int(5 * p), 4)] += weight * ((label == i) - p)
        assert found == pytest.approx(sum(map(abs, gaps)) / sum(range(100)), abs=EXACT)


def test_the_mean_is_that_of_the_classes_in_15_bins_with_weights_too():
    probs, labels = case(n=100, k=3)
    weights = torch.arange(100.0).double()
    assert torch.equal(metrics.ece_per_class(probs, labels), metrics.ece_per_class(probs, labels, 15))
    expected = metrics.ece_per_class(probs, labels, 15, weights=weights).mean().item()
    assert metrics.classwise_ece(probs, labels, weights=weights) == expected
    assert expected != metrics.classwise_ece(probs, labels)


def test_a_class_that_is_never_true_has_its_mean_probability():
    probs, labels = case(n=50, k=3)
    labels = labels.clamp(max=1)
    found = metrics.ece_per_class(probs, labels)
    assert found[2].item() == pytest.approx(probs[:, 2].mean().item(), abs=EXACT)
