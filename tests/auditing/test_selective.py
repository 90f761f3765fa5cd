"""Errors among the surest, and which risk is promised."""

import pytest
import torch

from bitbayes.auditing.findings import KEPT_SHARES
from bitbayes.auditing.predictions import Rated
from bitbayes.auditing.selective import risk_to_promise, score_selective


def test_the_errors_of_each_share_are_those_of_the_surest() -> None:
    confidence = torch.linspace(0.99, 0.6, 200)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    labels = (torch.arange(200) >= 180).long()  # the last 20 are wrong
    found = score_selective({"plain": Rated(probs, -confidence)}, labels)["plain"]
    for share, risk in zip(KEPT_SHARES, found, strict=True):
        n = round(200 * share)
        assert risk == pytest.approx(max(0, n - 180) / n)


@pytest.mark.parametrize(
    "error, n, risk",
    [
        (0.0, 10_000, 0.01),
        (0.03, 10_000, 0.02),
        (0.0, 300, 0.02),  # 299 right answers are needed for 1 %: more than half of them
        (0.0, 20, 0.3),
        (0.9, 10_000, 0.3),
    ],
)
def test_the_risk_is_chosen_without_the_test_labels(error: float, n: int, risk: float) -> None:
    assert risk_to_promise(error, n) == risk
