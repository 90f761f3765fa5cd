"""The debiased calibration error against loops over pairs, and its mean over all labels."""

import itertools
import math

import pytest
import torch

from bitbayes import metrics
from metric_cases import EXACT, case, scores


def pairs_of_bins(probs, labels, bins, weights):
    """Σ_b count_b/n · (the weighted mean of rᵢrⱼ over pairs i ≠ j of the bin), by a loop."""
    rows = []
    for row, label, weight in zip(probs.tolist(), labels.tolist(), weights, strict=True):
        top = max(row)
        rows.append((min(int(top * bins), bins - 1), float(row.index(top) == label) - top, weight))
    total = 0.0
    for b in range(bins):
        own = [(r, w) for number, r, w in rows if number == b and w > 0]
        if len(own) > 1:
            pairs = [(r * s, w * v) for (r, w), (s, v) in itertools.permutations(own, 2)]
            mean = sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)
            total += sum(w for _, w in own) * mean
    return total / sum(weights)


@pytest.mark.parametrize("bins", [1, 7, 15])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_a_loop_over_pairs(bins, weighted):
    probs, labels = case(n=120, k=3)
    weights = torch.rand(120).double() * (torch.arange(120) % 5 > 0) if weighted else None
    expected = pairs_of_bins(probs, labels, bins, [1.0] * 120 if weights is None else weights.tolist())
    assert expected > 0.001
    found = metrics.debiased_rmsce(probs, labels, bins, weights=weights)
    assert found**2 == pytest.approx(expected, abs=EXACT)


def test_with_equal_confidences_in_each_bin_it_is_the_estimate_of_kumar_and_others():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.tensor([0.55, 0.75, 0.95], dtype=torch.float64).repeat(30)
    labels = (torch.rand(90, generator=generator) > 0.6).long()
    expected = 0.0
    for value in (0.55, 0.75, 0.95):
        right = [float(label == 0) for c, label in zip(confidence, labels, strict=True) if c == value]
        share, count = sum(right) / len(right), len(right)
        expected += count / 90 * ((value - share) ** 2 - share * (1 - share) / (count - 1))
    found = metrics.debiased_rmsce(torch.stack([confidence, 1 - confidence], 1), labels)
    assert found**2 == pytest.approx(expected, abs=EXACT)


def test_the_square_has_no_bias_over_all_labels():
    # Bins of 4 and 3 points with different confidences. The true chances are not the confidences.
    probs = scores(0.51, 0.55, 0.6, 0.64, 0.8, 0.9, 0.95)
    chances = [0.3, 0.4, 0.2, 0.5, 0.5, 0.6, 0.4]
    mean = 0.0
    for labels in itertools.product((0, 1), repeat=7):
        chance = math.prod(1 - p if label else p for p, label in zip(chances, labels, strict=True))
        mean += chance * pairs_of_bins(probs, torch.tensor(labels), 3, [1.0] * 7)
    # The mean over pairs of rᵢrⱼ, in which each r is replaced by its mean.
    r = [p - c for p, c in zip(chances, probs[:, 0].tolist(), strict=True)]
    bins = ((0, 1, 2, 3), (4, 5, 6))
    expected = sum(
        sum(r[i] * r[j] for i, j in itertools.permutations(own, 2)) / (len(own) - 1) / 7 for own in bins
    )
    assert mean == pytest.approx(expected, abs=EXACT)


def test_labels_of_a_calibrated_model_have_a_square_of_about_zero():
    probs, _ = case(n=200, k=4, sharpness=1.0)
    generator = torch.Generator().manual_seed(0)
    found = [
        metrics.debiased_rmsce(probs, torch.multinomial(probs, 1, generator=generator)[:, 0])
        for _ in range(200)
    ]
    # Symmetric about 0, so in about half of the draws the square is below, and the root 0.
    assert 70 < sum(value == 0 for value in found) < 150


def test_a_bin_of_one_point_and_a_weight_of_nearly_nothing_make_no_pair():
    assert metrics.debiased_rmsce(scores(0.55, 0.95), torch.tensor([1, 1])) == 0
    weights = torch.tensor([1.0, 1e-20], dtype=torch.float64)
    assert metrics.debiased_rmsce(scores(0.95, 0.95), torch.tensor([1, 1]), weights=weights) == 0


def test_a_weight_does_not_pair_a_point_with_itself():
    probs, labels = scores(0.9, 0.9), torch.tensor([0, 1])
    weights = torch.tensor([2.0, 2.0])
    alone = metrics.debiased_rmsce(probs, labels)
    assert metrics.debiased_rmsce(probs, labels, weights=weights) == alone == 0


def test_there_are_15_bins():
    probs, labels = case()
    found = metrics.debiased_rmsce(probs, labels)
    assert found == metrics.debiased_rmsce(probs, labels, 15)
    assert found != metrics.debiased_rmsce(probs, labels, 16)
