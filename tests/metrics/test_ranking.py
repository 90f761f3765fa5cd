"""AUROC, FPR95 and thresholds against scikit-learn and loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from bitbayes import metrics
from metric_cases import EXACT, case, confidences, scores


def area_and_curve(probs_in, probs_out):
    score = torch.cat([probs_in, probs_out]).max(-1).values.numpy()
    positive = [1] * len(probs_in) + [0] * len(probs_out)
    false, true, _ = roc_curve(positive, score, drop_intermediate=False)
    # 20 · tpr · n ≥ 19 · n in whole numbers: the curve's own rates are rounded.
    kept = (true * len(probs_in)).round()
    return roc_auc_score(positive, score), false[(20 * kept >= 19 * len(probs_in)).argmax()]


@given(confidences, confidences)
def test_auroc_and_fpr95_agree_with_scikit_learn_with_many_ties(inside, outside):
    probs_in, probs_out = scores(*inside), scores(*outside)
    area, false_positives = area_and_curve(probs_in, probs_out)
    assert metrics.auroc(probs_in, probs_out) == pytest.approx(area, abs=EXACT)
    assert metrics.fpr95(probs_in, probs_out) == pytest.approx(false_positives, abs=EXACT)


@pytest.mark.parametrize("n", [1, 19, 20, 21, 40, 300])
def test_auroc_and_fpr95_agree_with_scikit_learn_without_ties(n):
    probs_in, _ = case(n=n, seed=1, sharpness=3.0)
    probs_out, _ = case(n=200, seed=2, sharpness=1.0)
    area, false_positives = area_and_curve(probs_in, probs_out)
    assert metrics.auroc(probs_in, probs_out) == pytest.approx(area, abs=EXACT)
    assert metrics.fpr95(probs_in, probs_out) == pytest.approx(false_positives, abs=EXACT)


@given(confidences, confidences)
def test_auroc_and_fpr95_of_scores_agree_with_scikit_learn(inside, outside):
    # Scores of any sign and size, with ties: 0.5, …, 1 become −1000, …, 1000.
    inside, outside = (4000 * torch.tensor(each) - 3000 for each in (inside, outside))
    score, positive = torch.cat([inside, outside]), [1] * len(inside) + [0] * len(outside)
    assert metrics.auroc(inside, outside) == pytest.approx(roc_auc_score(positive, score), abs=EXACT)
    kept = sorted(inside.tolist(), reverse=True)[: math.ceil(19 * len(inside) / 20)]
    expected = sum(each >= kept[-1] for each in outside.tolist()) / len(outside)
    assert metrics.fpr95(inside, outside) == pytest.approx(expected, abs=EXACT)


@given(confidences, st.integers(1, 100))
def test_the_threshold_is_the_largest_that_accepts_the_share(values, percent):
    t = metrics.threshold(torch.tensor(values), accept=percent / 100)
    enough = [
        each for each in values if 100 * sum(other >= each for other in values) >= percent * len(values)
    ]
    assert t == max(enough)


def test_auroc_is_1_for_separated_scores_and_0_for_reversed_ones():
    low, high = scores(0.5, 0.6), scores(0.7, 0.8, 0.9)
    assert metrics.auroc(high, low) == 1.0
    assert metrics.auroc(low, high) == 0.0
    assert metrics.auroc(low, low) == 0.5


def test_fpr95_keeps_exactly_19_of_20_and_counts_ties_at_the_threshold():
    inside = scores(0.55, 0.6, *[0.9] * 18)  # the 19th largest is 0.6
    assert metrics.fpr95(inside, scores(0.55, 0.59, 0.6, 0.61)) == 0.5
    inside = scores(0.55, *[0.9] * 18)  # of 19 points, 18 are only 94.7%: all must be kept
    assert metrics.fpr95(inside, scores(0.54, 0.55, 0.6, 0.61)) == 0.75


def test_the_threshold_accepts_no_more_than_the_share_as_it_is_written():
    # In floating point 0.07 · 100 is 7.000000000000001, and 8 points would be accepted.
    assert metrics.threshold(torch.arange(100.0), accept=0.07) == 93.0
    assert metrics.threshold(torch.arange(100.0), accept=1) == 0.0


def test_infinite_scores_have_an_order():
    inside, outside = torch.tensor([math.inf, 0.0]), torch.tensor([-math.inf, 1.0])
    assert metrics.auroc(inside, outside) == 0.75
    assert metrics.aurc(inside, torch.tensor([True, False])) == 0.25
