"""The parts of the Brier score against their sum and a loop over bins."""

import pytest
import torch

from bitbayes import metrics
from metric_cases import EXACT, case, scores


@pytest.mark.parametrize("k", [2, 4, 10])
@pytest.mark.parametrize("bins", [1, 15, 1000])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_parts_add_up_to_the_score(k, bins, weighted):
    probs, labels = case(k=k)
    weights = torch.arange(500) % 4 if weighted else None
    parts = metrics.brier_decomposition(probs, labels, bins, weights=weights)
    assert sum(parts) == pytest.approx(metrics.brier(probs, labels, weights=weights), abs=EXACT)
    assert (
        parts.calibration > (0 if bins == 1 else 0.01)
        and parts.refinement > 0.01
        and abs(parts.within_bins) > 1e-6
    )


def test_each_part_is_a_loop_over_classes_and_bins():
    probs, labels = case(n=80, k=3)
    weights = (torch.arange(80) % 3).double()
    calibration = refinement = within = 0.0
    for i in range(3):
        for b in range(4):
            inside = [
                (p, float(label == i), w)
                for p, label, w in zip(probs[:, i].tolist(), labels.tolist(), weights.tolist(), strict=True)
                if b / 4 <= p < (b + 1) / 4 and w > 0
            ]
            count = sum(w for _, _, w in inside)
            if not count:
                continue
            mean_p = sum(w * p for p, _, w in inside) / count
            mean_y = sum(w * y for _, y, w in inside) / count
            calibration += count * (mean_p - mean_y) ** 2
            refinement += count * mean_y * (1 - mean_y)
            within += sum(w * ((p - mean_p) ** 2 - 2 * (p - mean_p) * (y - mean_y)) for p, y, w in inside)
    parts = metrics.brier_decomposition(probs, labels, 4, weights=weights)
    expected = [each / weights.sum().item() for each in (calibration, refinement, within)]
    assert list(parts) == pytest.approx(expected, abs=EXACT)


def test_there_are_15_bins():
    probs, labels = case()
    found = metrics.brier_decomposition(probs, labels)
    assert found == metrics.brier_decomposition(probs, labels, 15)
    assert found != metrics.brier_decomposition(probs, labels, 16)


def test_equal_probabilities_in_a_bin_leave_nothing_within():
    probs, labels = scores(0.75, 0.75, 0.75, 0.75), torch.tensor([0, 0, 1, 1])
    assert metrics.brier_decomposition(probs, labels) == (2 * 0.25**2, 2 * 0.25, 0.0)


def test_refinement_alone_is_what_a_calibrated_coin_has():
    labels = torch.tensor([0, 1])
    assert metrics.brier_decomposition(scores(0.5, 0.5), labels) == (0.0, 0.5, 0.0)
    assert metrics.brier_decomposition(scores(1.0, 0.0), labels) == (0.0, 0.0, 0.0)
    assert metrics.brier_decomposition(scores(0.0, 1.0), labels) == (2.0, 0.0, 0.0)
