"""Measures of several labels, against scikit-learn and loops."""

import itertools
import math

import pytest
import torch

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError, FewPointsWarning
from bitbayes.metrics import (
    f1,
    hamming,
    label_brier,
    label_ece,
    label_mmc,
    label_nll,
    label_thresholds,
    mean_average_precision,
    of_labels,
    subset_accuracy,
)


def points(n=60, k=4, ties=False):
    """Labels, of which the last is never true, and probabilities that know something of them."""
    labels = torch.rand(n, k) < torch.linspace(0.7, 0.1, k)
    labels[:, -1] = False
    probs = (2 * labels - 1 + torch.randn(n, k)).sigmoid().double()
    return (probs * 10).round() / 10 if ties else probs, labels


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("threshold", [0.5, torch.tensor([0.2, 0.7, 0.5, 0.9])])
def test_measures_are_those_of_scikit_learn(ties, threshold):
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    probs, labels = points(ties=ties)
    given = (
        probs >= threshold.double() if isinstance(threshold, torch.Tensor) else probs >= threshold
    ).numpy()
    true = labels.long().numpy()
    for average in ("macro", "micro"):
        expected = sklearn_metrics.f1_score(true, given, average=average, zero_division=0)
        assert f1(probs, labels, thresholds=threshold, average=average) == pytest.approx(expected, rel=1e-12)
    expected = sklearn_metrics.hamming_loss(true, given)
    assert hamming(probs, labels, thresholds=threshold) == pytest.approx(expected, rel=1e-12)
    expected = sklearn_metrics.accuracy_score(true, given)
    assert subset_accuracy(probs, labels, thresholds=threshold) == pytest.approx(expected, rel=1e-12)
    own = [sklearn_metrics.average_precision_score(true[:, i], probs[:, i]) for i in range(3)]
    assert mean_average_precision(probs, labels) == pytest.approx(sum(own) / 3, rel=1e-12)
    own = [sklearn_metrics.log_loss(true[:, i], probs[:, i].clamp(1e-300), labels=[0, 1]) for i in range(4)]
    if not ties:  # at a probability of 0 or 1 scikit-learn has another floor
        assert label_nll(probs, labels) == pytest.approx(sum(own), rel=1e-12)
    own = [sklearn_metrics.brier_score_loss(true[:, i], probs[:, i], pos_label=1) for i in range(4)]
    assert label_brier(probs, labels) == pytest.approx(sum(own), rel=1e-12)


def test_the_calibration_error_is_that_of_a_loop_over_bins():
    probs, labels = points()
    probs[0, 0], probs[1, 1] = 1.0, 0.0
    total, pairs = 0.0, list(zip(probs.flatten().tolist(), labels.flatten().tolist(), strict=True))
    for b in range(15):
        inside = [(p, y) for p, y in pairs if b / 15 <= p < (b + 1) / 15 or (b == 14 and p == 1)]
        total += abs(sum(y - p for p, y in inside))
    assert label_ece(probs, labels) == pytest.approx(total / len(pairs), rel=1e-12)
    assert label_mmc(probs) == pytest.approx(sum(max(p, 1 - p) for p, _ in pairs) / len(pairs))


def test_no_positives_at_all_have_no_average_precision():
    probs, labels = points()
    assert math.isnan(mean_average_precision(probs, torch.zeros_like(labels)))
    assert f1(torch.zeros_like(probs), torch.zeros_like(labels)) == 0


def test_probabilities_of_0_cost_finitely():
    assert label_nll(torch.tensor([[1.0]]), torch.tensor([[0]])) == pytest.approx(87.3, abs=0.1)


def test_measures_of_evaluate_are_these():
    probs, labels = points()
    scores = torch.randn(60)
    found = of_labels(probs, labels, scores)
    right = ((probs >= 0.5) == labels).all(1)
    assert found["aurc"] == bb.metrics.aurc(scores, right) and found["accuracy"] == right.double().mean()
    assert found["map"] == mean_average_precision(probs, labels) and found["nll"] == label_nll(probs, labels)


def candidates(own):
    """All thresholds halfway between distinct probabilities, and one below all."""
    values = sorted({*own.tolist(), 0.0})
    return [(low + high) / 2 for low, high in itertools.pairwise(values)]


def counts(own, true, threshold):
    given = own >= threshold
    return int((given & true).sum()), int(given.sum()), int(true.sum())


@pytest.mark.parametrize("ties", [False, True])
def test_thresholds_are_the_best_of_a_loop(ties):
    probs, labels = points(ties=ties)
    probs, labels = probs[:, :3], labels[:, :3]
    best, precise, full = (
        label_thresholds(probs, labels, **given) for given in ({}, {"precision": 0.8}, {"recall": 0.8})
    )
    for i in range(3):
        own, true = probs[:, i], labels[:, i]
        scores = {t: counts(own, true, t) for t in candidates(own)}
        f1s = {t: 2 * r / (g + p) for t, (r, g, p) in scores.items()}
        assert f1s[float(best[i])] == max(f1s.values())
        good = [t for t, (r, g, _) in scores.items() if r >= 0.8 * g]
        assert float(precise[i]) == pytest.approx(min(good))
        good = [t for t, (r, _, p) in scores.items() if r >= 0.8 * p]
        assert float(full[i]) == pytest.approx(max(good))
    assert f1(probs, labels, thresholds=best) >= f1(probs, labels)


def test_a_label_without_positives_gets_a_half_and_a_warning():
    probs, labels = points()
    with pytest.warns(FewPointsWarning, match=r"no point has the label 3, whose threshold is 0\.5"):
        assert label_thresholds(probs, labels)[3] == 0.5


def test_a_precision_that_no_threshold_has_warns_and_gives_the_best():
    probs, labels = torch.tensor([[0.9], [0.6], [0.2]]), torch.tensor([[0], [1], [0]])
    with pytest.warns(FewPointsWarning, match=r"the label 0 has a precision of 0\.8: the best was taken"):
        found = label_thresholds(probs, labels, precision=0.8)
    assert float(found[0]) == pytest.approx(0.4)


@pytest.mark.parametrize(
    "given, says",
    [
        ({"precision": 0.8, "recall": 0.8}, "give one of them"),
        ({"precision": 0.0}, "precision=0.0: give a share"),
        ({"recall": 1.5}, "recall=1.5: give a share"),
        ({"maximise": "f2"}, "maximise='f2'.*'f1'"),
    ],
)
def test_arguments_of_thresholds_are_checked(given, says):
    with pytest.raises(ArgumentError, match=says):
        label_thresholds(*points(), **given)


@pytest.mark.parametrize(
    "probs, labels, says",
    [
        (torch.tensor([0.5]), torch.tensor([1]), r"probs is torch.float32 \(1,\)"),
        ([[0.5]], torch.tensor([[1]]), "probs is list"),
        (torch.tensor([[1.5]]), torch.tensor([[1]]), "from 0 to 1.*not logits"),
        (torch.tensor([[math.nan]]), torch.tensor([[1]]), "from 0 to 1"),
        (torch.tensor([[0.5]]), torch.tensor([1]), r"labels is \(1,\).*\(1, 1\)"),
        (torch.tensor([[0.5]]), [[1]], "labels is list"),
        (torch.tensor([[0.5]]), torch.tensor([[2]]), r"labels holds \[2\]: give 0 and 1"),
    ],
)
def test_wrong_points_raise(probs, labels, says):
    with pytest.raises(DataError, match=says):
        hamming(probs, labels)


def test_wrong_thresholds_bins_and_averages_raise():
    probs, labels = points()
    with pytest.raises(ArgumentError, match=r"thresholds has shape \(3,\).*4 labels"):
        hamming(probs, labels, thresholds=torch.zeros(3))
    with pytest.raises(ArgumentError, match="bins=0"):
        label_ece(probs, labels, bins=0)
    with pytest.raises(ArgumentError, match="average='weighted'"):
        f1(probs, labels, average="weighted")
