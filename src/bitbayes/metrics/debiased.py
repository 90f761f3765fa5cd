"""A calibration error from which the part that chance adds is subtracted."""

import torch
from torch import Tensor

from bitbayes.metrics.checks import (
    bin_numbers,
    check_labels,
    check_probs,
    confidence_of,
    correct_of,
    weights_or_ones,
)

# How much of a sum of weights may be rounding.
ROUNDING = 1e-12


def debiased_rmsce(probs: Tensor, labels: Tensor, bins: int = 15, *, weights: Tensor | None = None) -> float:
    """Return the debiased root mean squared calibration error: √max(0, Σ_b count_b/n · u_b).

    u_b is the mean of rᵢrⱼ over the pairs of different points of the bin b, r = [prediction right] −
    confidence. On average over labels, Σ_b count_b/n · u_b is Σ_b count_b/n · (accuracy_b − confidence_b)²
    with the true accuracies, so for a calibrated model it is 0. The plain square has Var_b(r)/count_b more in
    each bin. This is the debiased estimate of Kumar, Liang and Ma (2019), u_b = (accuracy_b − confidence_b)²
    − accuracy_b(1 − accuracy_b)/(count_b − 1), if the confidences in each bin are equal, and has no bias left
    if they are not.

    It is the root of a mean square (L2), in the units of `ece` (L1), and without noise at least as large as
    it. The square has no bias; the root of what is below 0 is taken as 0, so 0 says that chance explains the
    error. A bin of one point has no pair, and counts as 0.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        bins: the number of bins.
        weights: how many times each point counts, (n,); once without them. Each pair then counts by the
            product of its two weights. A point that counts twice makes no pair with itself.

    >>> probs = torch.tensor([[0.75, 0.25]]).expand(4, 2)
    >>> debiased_rmsce(probs, torch.tensor([1, 1, 1, 1]))
    0.75
    >>> debiased_rmsce(probs, torch.tensor([0, 0, 1, 1]))  # 2 of 4 where 3 were expected: chance
    0.0
    """
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    w = weights_or_ones(weights, len(probs))
    confidence = confidence_of(probs)  # (n,)
    r = correct_of(probs, labels) - confidence
    bin_of = bin_numbers(confidence, bins)
    count, squared_count, total, squares = (
        torch.bincount(bin_of, weights=each) for each in (w, w.square(), w * r, (w * r).square())
    )  # (bins,), up to the last that has points
    pairs = count.square() - squared_count
    some = pairs > ROUNDING * count.square()
    square = (count * (total.square() - squares) / pairs)[some].sum() / w.sum()
    return square.clamp(0, 1).sqrt().item()
