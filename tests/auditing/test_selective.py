"""Errors among the surest, and which risk is promised."""

import pytest
import torch

import bitbayes as bb
from bitbayes.auditing.findings import KEPT_SHARES, DataChecks
from bitbayes.auditing.predictions import Rated
from bitbayes.auditing.selective import promise_risk, risk_to_promise, score_selective


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
        (0.0, 300, 0.02),  # 299 right answers are needed for 1%: more than half of them
        (0.0, 20, 0.3),
        (0.9, 10_000, 0.3),
    ],
)
def test_the_risk_is_chosen_without_the_test_labels(error: float, n: int, risk: float) -> None:
    assert risk_to_promise(error, n) == risk


def test_a_threshold_is_promised_as_the_library_promises_it() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1200, 2, generator=generator)
    y = (x[:, 0] + 0.3 * torch.randn(1200, generator=generator) > 0).long()
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-3.0, 0.0], [3.0, 0.0]]))
        model.bias.zero_()
    parts = list(zip(x.split(400), y.split(400), strict=True))
    bayes = bb.Laplace(model).fit(parts[:1]).tune(parts[1:2])
    sizes = {"train": 400, "validation": 400, "test": 400}
    found = promise_risk(bayes, parts[2:], 0.1, DataChecks(), sizes)
    expected = bayes.threshold(parts[2:], risk=0.05)
    assert (found.risk, found.level, found.points) == (0.05, 0.95, 400)
    assert (found.threshold, found.accepted, found.errors) == (
        float(expected),
        expected.accepted,
        expected.errors,
    )
    assert found.accepted > 200 and found.errors / found.accepted < 0.05
    seen = promise_risk(bayes, parts[1:2], 0.1, DataChecks(), sizes)
    assert seen.threshold is None and "`tune`" in seen.reason
    copies = promise_risk(bayes, parts[2:], 0.1, DataChecks(copies={"test in train": 4}), sizes)
    assert copies.threshold is None
    assert copies.reason == "some test inputs are copies of training inputs"
