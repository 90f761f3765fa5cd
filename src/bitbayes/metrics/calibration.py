"""How far confidences are from accuracies, in bins of equal width."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.metrics.checks import (
    bin_numbers,
    check_labels,
    check_probs,
    check_weights,
    confidence_of,
    correct_of,
)


@dataclass(frozen=True)
class Reliability:
    """The points in each bin of confidence. `reliability` computes it."""

    count: Tensor  # (bins,) number of points, int64
    confidence: Tensor  # (bins,) mean confidence, NaN where the bin is empty
    accuracy: Tensor  # (bins,) share of correct labels, NaN where the bin is empty


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
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    confidence = confidence_of(probs)  # (n,)
    bin_of = bin_numbers(confidence, bins)  # (n,)
    own = None if weights is None else check_weights(weights, len(probs))
    count = torch.bincount(bin_of, own, minlength=bins)  # (bins,)

    def mean_per_bin(values: Tensor) -> Tensor:
        values = values if own is None else own * values
        return torch.bincount(bin_of, weights=values, minlength=bins) / count  # an empty bin gives 0/0 = NaN

    return Reliability(count, mean_per_bin(confidence), mean_per_bin(correct_of(probs, labels)))


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


def _gap_per_bin(
    probs: Tensor, labels: Tensor, bins: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the count and |accuracy − confidence| of each non-empty bin."""
    per_bin = _reliability(probs, labels, bins, weights)
    occupied = per_bin.count > 0
    return per_bin.count[occupied], (per_bin.accuracy - per_bin.confidence)[occupied].abs()
