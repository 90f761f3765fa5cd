"""The bootstrap against the metrics themselves, on inputs that are repeated as often as they were drawn."""

import pytest
import torch
from torch import Tensor

from bitbayes import metrics
from bitbayes.auditing import bootstrap
from bitbayes.auditing.predictions import Rated
from bitbayes.auditing.scores import score_test


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 7)
    monkeypatch.setattr(bootstrap, "WEIGHTS_AT_ONCE", 200)  # several steps


def drawn(weights: Tensor, values: Tensor) -> Tensor:
    """The values of one resample."""
    return values.repeat_interleave(weights.long(), dim=0)


def test_a_resample_has_as_many_inputs_as_there_are() -> None:
    weights = bootstrap.resample(50, seed=3)
    assert weights.shape == (7, 50)
    assert (weights.long().sum(1) == 50).all()
    assert len({tuple(row.tolist()) for row in weights}) == 7
    assert torch.equal(weights, bootstrap.resample(50, seed=3))


def test_scores_of_the_test_data_are_those_of_each_resample() -> None:
    probs, labels = torch.randn(60, 3).mul(2).softmax(1), torch.arange(60) % 3
    probs[10:20] = probs[:10]  # of the same confidence, and not all of the same label
    probs[20:23] = torch.tensor([1.0, 0.0, 0.0])
    weights = bootstrap.resample(60, seed=0)
    found = bootstrap.resampled_test_scores(weights, probs, labels)
    for i, row in enumerate(weights):
        p, y = drawn(row, probs), drawn(row, labels)
        expected = {
            "accuracy": metrics.accuracy(p, y),
            "confidence": metrics.mmc(p),
            "nll": metrics.nll(p, y),
            "ece": metrics.ece(p, y),
            "brier": metrics.brier(p, y),
            "brier_calibration": metrics.brier_decomposition(p, y).calibration,
            "brier_refinement": metrics.brier_decomposition(p, y).refinement,
            # A point that was drawn twice makes no pair with itself.
            "debiased_rmsce": metrics.debiased_rmsce(probs, labels, weights=row),
            "smooth_ece": metrics.smooth_ece(p, y),
            "classwise_ece": metrics.classwise_ece(p, y),
            "aurc": metrics.aurc(p.amax(1), p.argmax(1) == y),
            "augrc": metrics.augrc(p.amax(1), p.argmax(1) == y),
        }
        assert {name: values[i].item() for name, values in found.items()} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("ties", [False, True])
def test_scores_of_outliers_are_those_of_each_resample(ties: bool) -> None:
    inside, outside = torch.randn(60, dtype=torch.float64) + 1, torch.randn(40, dtype=torch.float64)
    if ties:
        inside, outside = inside.round(), outside.round()
    weights, own = bootstrap.resample(60, seed=0), bootstrap.resample(40, seed=1)
    confidence = torch.rand(40)
    found = bootstrap.resampled_outlier_scores(weights, inside, own, outside, confidence)
    for i in range(7):
        a, b = drawn(weights[i], inside), drawn(own[i], outside)
        assert found["auroc"][i].item() == pytest.approx(metrics.auroc(a, b))
        assert found["fpr95"][i].item() == pytest.approx(metrics.fpr95(a, b))
        assert found["confidence"][i].item() == pytest.approx(
            drawn(own[i], confidence).double().mean().item()
        )


def test_a_difference_counts_where_its_interval_excludes_zero() -> None:
    plain = {name: torch.rand(1000, dtype=torch.float64) for name in ("auroc", "fpr95")}
    shifted = {name: values + 0.2 for name, values in plain.items()}
    noisy = {name: values + torch.randn(1000) for name, values in plain.items()}
    assert bootstrap.compare(shifted, plain, ("auroc", "fpr95")) == {"auroc": "better", "fpr95": "worse"}
    assert set(bootstrap.compare(noisy, plain, ("auroc", "fpr95")).values()) == {"same"}
    rounded = {name: values + 1e-7 for name, values in plain.items()}
    assert set(bootstrap.compare(rounded, plain, ("auroc", "fpr95")).values()) == {"same"}


def test_each_method_is_compared_with_each_other_column() -> None:
    low = {"ece": torch.rand(1000)}
    high = {"ece": low["ece"] + 0.1}
    found = bootstrap.compare_all({"a": low, "b": high, "hidden": low}, ("ece",), ("a", "b"))
    assert found == {
        "a": {"b": {"ece": "better"}},
        "b": {"a": {"ece": "worse"}},
        "hidden": {"a": {"ece": "same"}, "b": {"ece": "better"}},
    }


def test_the_interval_of_an_accuracy_is_about_that_of_a_binomial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 2000)
    right = (torch.arange(400) < 320).double()
    low, high = bootstrap.interval(bootstrap.weighted_sums(bootstrap.resample(400, 0), right[:, None]) / 400)
    assert (low, high) == pytest.approx((0.8 - 1.96 * 0.02, 0.8 + 1.96 * 0.02), abs=0.005)


@pytest.mark.parametrize("seed", range(4))
def test_the_ece_of_a_calibrated_classifier_is_inside_of_its_interval(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 300)
    monkeypatch.setattr(bootstrap, "WEIGHTS_AT_ONCE", 1_000_000)
    generator = torch.Generator().manual_seed(seed)
    confidence = 0.5 + 0.5 * torch.rand(10_000, generator=generator)
    labels = (torch.rand(10_000, generator=generator) > confidence).long()
    rated = Rated(torch.stack([confidence, 1 - confidence], 1), confidence)
    found = score_test({"plain": rated}, labels, ["plain"])["plain"]
    low, high = found.intervals["ece"]
    assert 0 <= low < found.ece < high < 0.02
    assert found.ece == pytest.approx((low + high) / 2, abs=0.002)
