"""Proper scores, accuracy, confidence and entropy against scikit-learn and their definitions."""

import math

import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from bitbayes import metrics
from metric_cases import EXACT, case


@pytest.mark.parametrize("k", [2, 4, 10])
def test_accuracy_nll_and_brier_agree_with_scikit_learn(k):
    probs, labels = case(k=k)
    classes = list(range(k))
    assert metrics.accuracy(probs, labels) == accuracy_score(labels, probs.argmax(-1))
    assert metrics.nll(probs, labels) == pytest.approx(log_loss(labels, probs, labels=classes), abs=EXACT)
    oracle = brier_score_loss(labels, probs, labels=classes, scale_by_half=False)
    assert metrics.brier(probs, labels) == pytest.approx(oracle, abs=EXACT)


def test_mmc_and_entropy_are_their_definitions():
    probs, _ = case(n=50)
    rows = probs.tolist()
    assert metrics.mmc(probs) == pytest.approx(sum(max(row) for row in rows) / 50, abs=EXACT)
    entropy = -sum(p * math.log(p) for row in rows for p in row) / 50
    assert metrics.entropy(probs) == pytest.approx(entropy, abs=EXACT)
    uniform = torch.full((3, 10), 0.1, dtype=torch.float64)
    assert metrics.entropy(uniform) == pytest.approx(math.log(10), abs=EXACT)
    assert metrics.entropy(torch.eye(3)) == 0.0


@pytest.mark.parametrize(
    "dtype, nats",
    [(torch.float64, 708.4), (torch.float32, 87.3), (torch.bfloat16, 87.3), (torch.float16, 87.3)],
)
def test_nll_of_an_impossible_label_is_large_and_finite(dtype, nats):
    probs = torch.tensor([[1.0, 0.0]], dtype=dtype)
    assert metrics.nll(probs, torch.tensor([1])) == pytest.approx(nats, abs=0.05)


def test_nll_uses_a_float16_probability_below_the_smallest_normal_one():
    probs = torch.tensor([[1.0, 2.0**-20]], dtype=torch.float16)
    assert metrics.nll(probs, torch.tensor([1])) == pytest.approx(20 * math.log(2), abs=EXACT)


def test_sums_are_taken_in_float64():
    # float32 has no number within 1e-9 of this mean.
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    exact = sum(p for p, _ in probs.tolist()) / 3
    assert abs(torch.tensor(exact).item() - exact) > 1e-9
    assert metrics.mmc(probs) == pytest.approx(exact, abs=EXACT)
