"""Measures of predicted probabilities and values: calibration, sharpness, separation of outliers from data.

`probs` is (n, k): one row of k class probabilities per point. Each row sums to one. A network with a single
logit gives (n, 2). `labels` is (n,): whole numbers from 0 to k − 1. In regression, `mean`, `deviation` and
`targets` are (n, k). With several labels for each point (`f1`, `hamming`, `label_nll`, …) `probs` (n, k) are
the probabilities of the labels, whose rows do not sum to one, and `labels` (n, k) are 0 and 1. The
*confidence* of a point is its largest probability. `scores` is (n,): any numbers, larger for points that look
more like the data. All sums are taken in float64 on the CPU, so the result does not depend on the device.
"""

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, DataError
from bitbayes.label_metrics import (
    all_right,
    f1,
    hamming,
    label_brier,
    label_ece,
    label_mmc,
    label_nll,
    label_thresholds,
    mean_average_precision,
    subset_accuracy,
)

__all__ = [
    "Reliability",
    "RiskCoverage",
    "accuracy",
    "aurc",
    "auroc",
    "brier",
    "crps",
    "ece",
    "entropy",
    "f1",
    "fpr95",
    "gaussian_nll",
    "hamming",
    "interval_coverage",
    "label_brier",
    "label_ece",
    "label_mmc",
    "label_nll",
    "label_thresholds",
    "log_names",
    "mce",
    "mean_average_precision",
    "mmc",
    "nll",
    "of_labels",
    "of_outliers",
    "of_predictions",
    "of_scores",
    "of_values",
    "quantile_error",
    "reliability",
    "risk_coverage",
    "rmse",
    "subset_accuracy",
    "threshold",
]

# How much of a sum of weights may be rounding.
ROUNDING = 1e-12
# MLflow allows 250 characters for the name of a set and of its metric together.
LONGEST_LOG_NAME = 200


@dataclass(frozen=True)
class Reliability:
    """The points in each bin of confidence. `reliability` computes it."""

    count: Tensor  # (bins,) number of points, int64
    confidence: Tensor  # (bins,) mean confidence, NaN where the bin is empty
    accuracy: Tensor  # (bins,) share of correct labels, NaN where the bin is empty


@dataclass(frozen=True)
class RiskCoverage:
    """The share of errors among accepted points, for each share of accepted points. See `risk_coverage`."""

    coverage: Tensor  # (n,) share of points that are accepted: 1/n, 2/n, …, 1
    risk: Tensor  # (n,) share of errors among them


def log_names(names: Iterable[object]) -> list[str]:
    """Return names that MLflow and Weights & Biases accept as a part of a metric's name.

    They consist of letters, digits and underscores, do not begin with a digit, and are not long. Other
    characters become underscores. If two names become the same, the later one gets a number.

    Args:
        names: any texts.

    >>> log_names(["SVHN", "far away", "far/away", "5 digits", ""])
    ['SVHN', 'far_away', 'far_away_2', '_5_digits', '_']
    """
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", str(name))[:LONGEST_LOG_NAME] or "_"
        plain = f"_{plain}" if plain[0].isdigit() else plain
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        found.append(plain if plain not in found else next(each for each in numbered if each not in found))
    return found


def accuracy(probs: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the share of points whose most probable class is the label: 1/n Σ [arg max pₙ = yₙ].

    If several classes are most probable, the first of them counts.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        weights: how many times each point counts, (n,); once without them.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
    0.5
    """
    probs = _check_probs(probs)
    labels = _check_labels(labels, probs)
    return _mean(_correct(probs, labels), weights)


def mmc(probs: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the mean maximum confidence, 1/n Σ maxᵢ pₙᵢ, of `probs` (n, k).

    Args:
        probs: probabilities (n, k).
        weights: how many times each point counts, (n,); once without them.

    >>> mmc(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    0.625
    """
    return _mean(_confidence(_check_probs(probs)), weights)


def entropy(probs: Tensor) -> float:
    """Return the mean predictive entropy of `probs` (n, k) in nats: −1/n Σₙ Σᵢ pₙᵢ log pₙᵢ, with 0 log 0 = 0.

    >>> round(entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])), 4)  # half of log 2
    0.3466
    """
    per_point: Tensor = torch.special.entr(_check_probs(probs)).sum(-1)  # (n,)
    return per_point.mean().item()


def auroc(probs_in: Tensor, probs_out: Tensor, *, weights_in: Tensor | None = None) -> float:
    """Return the area under the ROC curve: P(score_in > score_out) + ½ P(score_in = score_out).

    The area is 1 if the score separates the two sets perfectly and ½ if it does not separate them at all. It
    is below ½ if outliers get larger scores.

    Args:
        probs_in: of in-distribution points, the positive class: scores (n,), or probabilities (n, k), whose
            score is the confidence.
        probs_out: the same of outliers, (m,) or (m, k).
        weights_in: how many times each in-distribution point counts, (n,); once without them.

    >>> auroc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([[0.6, 0.4], [0.5, 0.5]]))
    0.875
    >>> auroc(torch.tensor([7.0, 3.0]), torch.tensor([3.0, -1.0]))
    0.875
    """
    score_in, score_out = _scores_of_both(probs_in, probs_out)  # (n,), (m,)
    score_out = score_out.sort().values
    # (n,) for each in-distribution point the number of outliers with a smaller, or smaller or equal, score.
    smaller = torch.searchsorted(score_out, score_in)
    smaller_or_equal = torch.searchsorted(score_out, score_in, right=True)
    return _mean((smaller + smaller_or_equal).double(), weights_in) / (2 * len(score_out))


def fpr95(probs_in: Tensor, probs_out: Tensor, *, weights_in: Tensor | None = None) -> float:
    """Return the false positive rate at 95 % true positives: the share of outliers with score ≥ t.

    t is the `threshold` that accepts 95 % of the in-distribution points. The rate is 0 if all outliers have a
    score < t, and 1 if none has.

    Args:
        probs_in: of in-distribution points, the positive class: scores (n,), or probabilities (n, k), whose
            score is the confidence.
        probs_out: the same of outliers, (m,) or (m, k).
        weights_in: how many times each in-distribution point counts, (n,); once without them.

    >>> fpr95(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([[0.6, 0.4], [0.5, 0.5]]))
    0.5
    """
    score_in, score_out = _scores_of_both(probs_in, probs_out)  # (n,), (m,)
    accepted = score_out >= threshold(score_in, accept=0.95, weights=weights_in)
    return accepted.double().mean().item()


def threshold(scores: Tensor, *, accept: float = 0.95, weights: Tensor | None = None) -> float:
    """Return the largest t for which at least accept · n of the scores are ≥ t: the ⌈accept · n⌉-th largest.

    Args:
        scores: (n,).
        accept: the share to accept, above 0 and at most 1.
        weights: how many times each score counts, (n,); once without them.

    >>> threshold(torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0]), accept=0.6)
    3.0
    """
    share = check_share(accept)
    scores, order = _check_scores(scores, "scores").sort(descending=True)
    if weights is not None:
        totals = _check_weights(weights, len(scores))[order].cumsum(0)
        enough = totals >= float(share) * totals[-1] * (1 - ROUNDING)
        return scores[int(enough.nonzero()[0])].item()
    return scores[math.ceil(share * len(scores)) - 1].item()


def check_share(accept: float) -> Fraction:
    """Return the share as an exact fraction; raise if it is not above 0 and at most 1.

    In floating point 0.07 · 100 is 7.000000000000001, so that 8 points would be accepted.
    """
    if not isinstance(accept, (int, float)) or not 0 < accept <= 1:
        raise ArgumentError(f"accept={accept!r}: give the share to accept, above 0 and at most 1")
    return Fraction(str(float(accept)))


def risk_coverage(scores: Tensor, correct: Tensor) -> RiskCoverage:
    """Return the share of errors among the points with the i largest scores, for i = 1, …, n.

    Points with equal scores have no order, so each of them counts as the mean error of all of them. This is
    the average over all their orders.

    Args:
        scores: (n,), larger for points that are accepted earlier.
        correct: whether the predicted class is the label, (n,) booleans.

    >>> risk_coverage(torch.tensor([9.0, 7.0, 7.0, 1.0]), torch.tensor([True, True, False, False]))
    RiskCoverage(coverage=tensor([0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64),
                 risk=tensor([0.0000, 0.2500, 0.3333, 0.5000], dtype=torch.float64))
    """
    scores = _check_scores(scores, "scores")
    if not isinstance(correct, Tensor) or correct.dtype != torch.bool or correct.shape != scores.shape:
        given = (
            f"{correct.dtype} {tuple(correct.shape)}"
            if isinstance(correct, Tensor)
            else type(correct).__name__
        )
        raise DataError(f"correct is {given}: give booleans of shape {tuple(scores.shape)}, as scores has")
    _, tie, size = torch.unique(-scores, return_inverse=True, return_counts=True)  # the largest score first
    wrong = torch.bincount(tie, weights=(~correct.detach().cpu()).double())  # (ties,)
    accepted = torch.arange(1, len(scores) + 1, dtype=torch.float64)  # (n,)
    errors = (wrong / size).repeat_interleave(size).cumsum(0)  # (n,)
    return RiskCoverage(accepted / len(scores), errors / accepted)


def aurc(scores: Tensor, correct: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the area under the risk-coverage curve: 1/n Σᵢ risk(i/n), the mean of `risk_coverage`.

    It is 0 if nothing is wrong, and about the error rate if the scores are unrelated to the errors.

    Args:
        scores: (n,), larger for points that are accepted earlier.
        correct: whether the predicted class is the label, (n,) booleans.
        weights: how many times each point counts, (n,); once without them.

    With weights, points with equal scores of the weight s, e of it wrong, after points of the weight m, of it
    w wrong, add Σᵢ (w + i·e/s)/(m + i), i = 1 … s. For whole numbers this is
    e + (w − m·e/s)·(ψ(m + s + 1) − ψ(m + 1)), ψ the digamma function, and for others it is taken to be that.

    >>> aurc(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([True, True, True, False]))
    0.0625
    """
    if weights is None:
        return risk_coverage(scores, correct).risk.mean().item()
    weights = _check_weights(weights, len(scores))
    _, tie = torch.unique(-_check_scores(scores, "scores"), return_inverse=True)  # the largest score first
    sizes = torch.bincount(tie, weights=weights)  # (ties,)
    errors = torch.bincount(tie, weights=weights * ~correct.detach().cpu())
    sizes, errors = sizes[sizes > 0], errors[sizes > 0]
    before, wrong = sizes.cumsum(0) - sizes, errors.cumsum(0) - errors
    harmonic = torch.special.digamma(before + sizes + 1) - torch.special.digamma(before + 1)
    return float((errors + (wrong - before * errors / sizes) * harmonic).sum() / sizes.sum())


def reliability(probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Sort points by confidence into bins of equal width, for a reliability diagram.

    Bin b = 0, …, bins − 1 holds the points with b/bins ≤ confidence < (b+1)/bins. The top bin also holds a
    confidence of exactly 1. The result has three tensors (bins,): the number of points, their mean confidence
    and their accuracy. The last two are NaN in an empty bin.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        bins: the number of bins.

    >>> reliability(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), torch.tensor([0, 1]), bins=2)
    Reliability(count=tensor([0, 2]), confidence=tensor([   nan, 0.8750], dtype=torch.float64),
                accuracy=tensor([   nan, 0.5000], dtype=torch.float64))
    """
    return _reliability(probs, labels, bins, None)


def _reliability(probs: Tensor, labels: Tensor, bins: int, weights: Tensor | None) -> Reliability:
    """The same with weights: `count` is then their sum."""
    if not isinstance(bins, int) or bins < 1:
        raise ArgumentError(f"bins={bins!r}: give a whole number of bins, at least 1")
    probs = _check_probs(probs)
    labels = _check_labels(labels, probs)
    confidence = _confidence(probs)  # (n,)
    # Only the inner edges. So a confidence of 1, or slightly more by rounding, falls into the top bin.
    inner_edges = torch.arange(1, bins, dtype=torch.float64) / bins
    bin_of = torch.bucketize(confidence, inner_edges, right=True)  # (n,)
    own = None if weights is None else _check_weights(weights, len(probs))
    count = torch.bincount(bin_of, own, minlength=bins)  # (bins,)

    def mean_per_bin(values: Tensor) -> Tensor:
        values = values if own is None else own * values
        return torch.bincount(bin_of, weights=values, minlength=bins) / count  # an empty bin gives 0/0 = NaN

    return Reliability(count, mean_per_bin(confidence), mean_per_bin(_correct(probs, labels)))


def ece(probs: Tensor, labels: Tensor, bins: int = 15, *, weights: Tensor | None = None) -> float:
    """Return the expected calibration error: Σ_b count_b/n · |accuracy_b − confidence_b|.

    The sum is over the bins of `reliability`.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        bins: the number of bins.
        weights: how many times each point counts, (n,); once without them.

    >>> ece(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1, 0, 0]))
    0.375
    """
    count, gap = _gap_per_bin(probs, labels, bins, weights)
    return ((count * gap).sum() / count.sum()).item()


def mce(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Return the maximum calibration error: max_b |accuracy_b − confidence_b|.

    The maximum is over the non-empty bins of `reliability`.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        bins: the number of bins.

    >>> mce(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1, 0, 0]))
    0.5
    """
    _, gap = _gap_per_bin(probs, labels, bins)
    return gap.max().item()


def brier(probs: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the Brier score: 1/n Σₙ Σᵢ (pₙᵢ − [yₙ = i])².

    The sum over classes makes it a number between 0 and 2. Some libraries halve it for two classes.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        weights: how many times each point counts, (n,); once without them.

    >>> brier(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([0, 0]))
    0.0625
    """
    probs = _check_probs(probs)
    labels = _check_labels(labels, probs)
    one_hot = torch.nn.functional.one_hot(labels, probs.shape[1])  # (n, k)
    return _mean((probs - one_hot).square().sum(-1), weights)


def nll(probs: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the negative log-likelihood in nats: −1/n Σ log pₙ,yₙ.

    The result is always finite. A probability below the smallest normal number of its dtype counts as that
    number; for half precision that of float32 is taken. So a zero for the true label costs 87.3 nats, or
    708.4 nats in float64.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        weights: how many times each point counts, (n,); once without them.

    >>> round(nll(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1])), 4)  # half of log 2
    0.3466
    """
    p = _check_probs(probs)
    labels = _check_labels(labels, p)
    floor = torch.finfo(torch.promote_types(probs.dtype, torch.float32)).tiny
    return -_mean(p.gather(1, labels[:, None])[:, 0].clamp(min=floor).log(), weights)


def of_predictions(
    probs: Tensor, labels: Tensor, scores: Tensor, *, weights: Tensor | None = None
) -> dict[str, float]:
    """Return the measures of `Laplace.evaluate` on labelled data. Small `scores` (n,) are rejected first.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        scores: (n,).
        weights: how many times each point counts, (n,); once without them.

    >>> probs, labels = torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1])
    >>> of_predictions(probs, labels, torch.ones(2), weights=torch.tensor([3.0, 1.0]))["accuracy"]
    0.75
    """
    return {
        "accuracy": accuracy(probs, labels, weights=weights),
        "nll": nll(probs, labels, weights=weights),
        "ece": ece(probs, labels, weights=weights),
        "brier": brier(probs, labels, weights=weights),
        "mmc": mmc(probs, weights=weights),
        "aurc": aurc(scores, probs.argmax(1) == labels, weights=weights),
    }


def of_labels(
    probs: Tensor, labels: Tensor, scores: Tensor, *, thresholds: float | Tensor = 0.5
) -> dict[str, float]:
    """Return the measures of `Laplace.evaluate` on points with several labels each.

    Args:
        probs: (n, k), the probabilities of the labels.
        labels: (n, k), 0 and 1.
        scores: (n,); points with small ones are rejected first, for "aurc".
        thresholds: from which a label is given, one number or (k,).

    >>> probs, labels = torch.tensor([[0.9, 0.2], [0.9, 0.8]]), torch.tensor([[1, 0], [1, 0]])
    >>> found = of_labels(probs, labels, torch.tensor([2.0, 1.0]))
    >>> found["accuracy"], found["hamming"], found["f1_micro"], found["map"]
    (0.5, 0.25, 0.8, 1.0)
    """
    return {
        "accuracy": subset_accuracy(probs, labels, thresholds=thresholds),
        "hamming": hamming(probs, labels, thresholds=thresholds),
        "f1_micro": f1(probs, labels, thresholds=thresholds, average="micro"),
        "f1_macro": f1(probs, labels, thresholds=thresholds),
        "map": mean_average_precision(probs, labels),
        "nll": label_nll(probs, labels),
        "ece": label_ece(probs, labels),
        "brier": label_brier(probs, labels),
        "mmc": label_mmc(probs),
        "aurc": aurc(scores, all_right(probs, labels, thresholds)),
    }


def of_outliers(
    probs: Tensor, scores: Tensor, scores_in: Tensor, *, weights_in: Tensor | None = None
) -> dict[str, float]:
    """Return the measures of `Laplace.evaluate` on outliers. `scores_in` (n,) are the scores of the data."""
    return {**of_scores(scores, scores_in, weights_in=weights_in), "mmc": mmc(probs)}


def of_scores(scores: Tensor, scores_in: Tensor, *, weights_in: Tensor | None = None) -> dict[str, float]:
    """Return how well scores tell outliers from data, whose scores are `scores_in`."""
    return {
        "auroc": auroc(scores_in, scores, weights_in=weights_in),
        "fpr95": fpr95(scores_in, scores, weights_in=weights_in),
    }


def _confidence(probs: Tensor) -> Tensor:
    return probs.max(-1).values  # (n,)


def _correct(probs: Tensor, labels: Tensor) -> Tensor:
    return (probs.argmax(-1) == labels).double()  # (n,)


def _mean(values: Tensor, weights: Tensor | None) -> float:
    """The mean of values (n,), in which a point with the weight w counts w times."""
    if weights is None:
        return values.mean().item()
    weights = _check_weights(weights, len(values))
    return (weights @ values / weights.sum()).item()


def _check_weights(weights: Tensor, n: int) -> Tensor:
    """Check that these are n weights, not all of them 0, and return them in float64 on the CPU."""
    if not isinstance(weights, Tensor) or weights.shape != (n,) or weights.is_complex():
        given = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise DataError(f"weights is {given}: give one number for each point, ({n},)")
    w = weights.detach().to("cpu", torch.float64)
    if not bool(((w >= 0) & w.isfinite()).all()) or not bool(w.any()):
        raise DataError("the weights are not all finite and at least 0, or all of them are 0")
    return w


def _gap_per_bin(
    probs: Tensor, labels: Tensor, bins: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the count and |accuracy − confidence| of each non-empty bin."""
    per_bin = _reliability(probs, labels, bins, weights)
    occupied = per_bin.count > 0
    return per_bin.count[occupied], (per_bin.accuracy - per_bin.confidence)[occupied].abs()


def _check_probs(probs: Tensor, name: str = "probs") -> Tensor:
    """Check that `probs` are probabilities, and return them in float64 on the CPU."""
    if not isinstance(probs, Tensor) or not probs.is_floating_point():
        kind = probs.dtype if isinstance(probs, Tensor) else type(probs).__name__
        raise DataError(f"{name} must be a floating-point tensor of probabilities (n, k), but is {kind}")
    if probs.dim() != 2 or len(probs) == 0 or probs.shape[1] < 2:
        raise DataError(
            f"{name} has shape {tuple(probs.shape)}: give one row per point and one column per class, (n, k) "
            "with n ≥ 1 and k ≥ 2; a single-logit network's p becomes torch.stack([1 - p, p], -1)"
        )
    p = probs.detach().to("cpu", torch.float64)
    if not p.isfinite().all():
        bad = int((~p.isfinite()).any(-1).sum())
        raise DataError(f"{name} holds NaN or infinity in {bad} of {len(p)} rows: find where they come from")
    if p.min() < 0:
        raise DataError(f"{name} holds {p.min().item():.3g} < 0: give probabilities, not logits")
    off = (p.sum(-1) - 1).abs().max().item()
    if off > _sum_tolerance(probs):
        raise DataError(
            f"rows of {name} must sum to one, but one is off by {off:.3g}, more than rounding in "
            f"{probs.dtype} explains ({_sum_tolerance(probs):.2g}): give probabilities, not logits or scores"
        )
    return p


def _scores_of_both(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores of both sets, (n,) and (m,). For probabilities these are the confidences."""
    dims = [each.dim() for each in (first, second) if isinstance(each, Tensor)]
    if dims == [1, 1]:
        return _check_scores(first, "probs_in"), _check_scores(second, "probs_out")
    if sorted(dims) == [1, 2]:
        raise DataError(
            f"probs_in has shape {tuple(first.shape)} and probs_out has shape {tuple(second.shape)}: "
            "give two sets of probabilities, (n, k) and (m, k), or two of scores, (n,) and (m,)"
        )
    probs = _check_probs(first, "probs_in"), _check_probs(second, "probs_out")
    return _confidence(probs[0]), _confidence(probs[1])


def _check_scores(scores: Tensor, name: str) -> Tensor:
    """Check that `scores` are numbers without NaN, and return them in float64 on the CPU."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        kind = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise DataError(f"{name} must be a floating-point tensor of scores (n,), but is {kind}")
    if scores.dim() != 1 or len(scores) == 0:
        raise DataError(f"{name} has shape {tuple(scores.shape)}: give one score per point, (n,) with n ≥ 1")
    s = scores.detach().to("cpu", torch.float64)
    if s.isnan().any():
        raise DataError(f"{name} holds NaN in {int(s.isnan().sum())} of {len(s)} points: they have no order")
    return s


def _sum_tolerance(probs: Tensor) -> float:
    """Return how far the sum of a row can be from one because of rounding.

    A sum of non-negative entries with relative errors ≤ r has a relative error ≤ r. Rounding an entry to its
    dtype costs ε/2. If the logarithm of an entry was rounded to that dtype, the entry loses |log p| · ε/2 and
    the row loses entropy · ε/2, which is at most 3.5 ε for a thousand classes. Together that is 4 ε. The
    normalising sum over k classes and an average over 100 draws are taken in float32 or better. They cost at
    most one ε of float32 per term. The bound for float64 includes them, because its numbers often were
    float32 before.
    """
    float32_eps = torch.finfo(torch.float32).eps
    return 4 * torch.finfo(probs.dtype).eps + (probs.shape[1] + 100) * float32_eps


def _check_labels(labels: Tensor, probs: Tensor) -> Tensor:
    """Check that `labels` are class numbers for `probs`, and return them in int64 on the CPU."""
    n, k = probs.shape
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise DataError(f"labels must be a tensor of whole numbers, but is {kind}: give class numbers")
    if labels.shape != (n,):
        raise DataError(f"labels has shape {tuple(labels.shape)}, but probs has {n} rows: give shape ({n},)")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= k:
        raise DataError(f"labels go from {low} to {high}, but probs has {k} classes: give 0 to {k - 1}")
    return labels.detach().to("cpu", torch.int64)


def rmse(mean: Tensor, targets: Tensor) -> float:
    """Return the root of the mean squared error, √(mean (y − m)²), over points and outputs.

    Args:
        mean: predicted values (n, k).
        targets: (n, k).

    >>> rmse(torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [7.0]]))
    5.0
    """
    mean, _, targets = _check_values(mean, None, targets)
    return (targets - mean).square().mean().sqrt().item()


def gaussian_nll(mean: Tensor, deviation: Tensor, targets: Tensor) -> float:
    """Return the negative log-likelihood in nats, the mean of ½ log 2πs² + ½((y − m)/s)².

    Args:
        mean: predicted values (n, k).
        deviation: the predicted standard deviations s of y, (n, k).
        targets: y, (n, k).

    >>> round(gaussian_nll(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, 1)), 4)  # ½ log 2π
    0.9189
    """
    mean, deviation, targets = _check_values(mean, deviation, targets)
    z = (targets - mean) / deviation
    return (math.log(2 * math.pi) / 2 + deviation.log() + z.square() / 2).mean().item()


def crps(mean: Tensor, deviation: Tensor, targets: Tensor) -> float:
    """Return the continuous ranked probability score of Gaussian predictions, in the units of the targets.

    The mean of s[z(2Φ(z) − 1) + 2φ(z) − 1/√π], z = (y − m)/s. For a certain prediction it is |y − m|.

    Args:
        mean: predicted values (n, k).
        deviation: the predicted standard deviations s of y, (n, k).
        targets: y, (n, k).

    >>> round(crps(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, 1)), 4)  # (√2 − 1)/√π
    0.2337
    """
    mean, deviation, targets = _check_values(mean, deviation, targets)
    z = (targets - mean) / deviation
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    own = z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi)
    return float((deviation * own).mean())


def interval_coverage(interval: Tensor, targets: Tensor) -> float:
    """Return the share of targets inside of their intervals.

    Args:
        interval: (n, k, 2), lower and upper ends.
        targets: (n, k).

    >>> interval_coverage(torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]]), torch.tensor([[0.5], [2.0]]))
    0.5
    """
    lower, _, targets = _check_values(interval[..., 0], None, targets)
    inside = (lower <= targets) & (targets <= interval[..., 1].double().cpu())
    return inside.double().mean().item()


def quantile_error(mean: Tensor, deviation: Tensor, targets: Tensor) -> float:
    """Return how far quantiles are from calibrated: the mean of |share of y below the q-quantile − q|.

    q = 0.05, 0.1, …, 0.95.

    Args:
        mean: predicted values (n, k).
        deviation: the predicted standard deviations of y, (n, k).
        targets: y, (n, k).

    >>> round(quantile_error(torch.zeros(1, 1), torch.ones(1, 1), torch.full((1, 1), 9.0)), 4)
    0.5
    """
    mean, deviation, targets = _check_values(mean, deviation, targets)
    places = torch.special.ndtr((targets - mean) / deviation).flatten()
    levels = torch.arange(1, 20, dtype=torch.float64) / 20
    return float(((places[:, None] <= levels).double().mean(0) - levels).abs().mean())


def of_values(mean: Tensor, deviation: Tensor, interval: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the measures of `Laplace.evaluate` in regression; `interval` is that of 90 %."""
    return {
        "rmse": rmse(mean, targets),
        "nll": gaussian_nll(mean, deviation, targets),
        "crps": crps(mean, deviation, targets),
        "coverage90": interval_coverage(interval, targets),
        "width90": (interval[..., 1] - interval[..., 0]).double().mean().item(),
        "quantile_error": quantile_error(mean, deviation, targets),
    }


def _check_values(mean: Tensor, deviation: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means, deviations (1 without any) and targets in float64 on the CPU; raises if they do not fit."""
    deviation = torch.ones_like(mean) if deviation is None else deviation
    shapes = [tuple(each.shape) for each in (mean, deviation, targets)]
    if len(set(shapes)) > 1 or mean.dim() != 2 or not len(mean):
        raise ArgumentError(
            f"means, deviations and targets have the shapes {', '.join(map(str, shapes))}: expected (n, k) "
            "for each"
        )
    if not bool((deviation > 0).all()):
        raise ArgumentError("the deviations are not all positive")
    m, d, t = (each.detach().double().cpu() for each in (mean, deviation, targets))
    return m, d, t
