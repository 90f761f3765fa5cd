"""How far the probability of each class is from the share of points of that class."""

import torch
from torch import Tensor

from bitbayes.metrics.checks import bin_numbers, check_labels, check_probs, weights_or_ones


def classwise_ece(probs: Tensor, labels: Tensor, bins: int = 15, *, weights: Tensor | None = None) -> float:
    """Return the mean over classes of their calibration errors, 1/k Σᵢ `ece_per_class`ᵢ (Kull et al. 2019).

    `ece` looks at the largest probability of each point alone, and this at all of them. With many classes,
    most probabilities are about 0 and right, so the mean is small: compare only numbers of the same k.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        bins: the number of bins.
        weights: how many times each point counts, (n,); once without them.

    >>> classwise_ece(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.75, 0.25]]), torch.tensor([0, 1, 0]), bins=2)
    0.25
    """
    return ece_per_class(probs, labels, bins, weights=weights).mean().item()


def ece_per_class(probs: Tensor, labels: Tensor, bins: int = 15, *, weights: Tensor | None = None) -> Tensor:
    """Return for each class i the calibration error Σ_b count_b/n · |share_b − p_b|, (k,) in float64.

    Bin b holds the points whose probability of class i is from b/bins to below (b+1)/bins, the last one also
    1. p_b is the mean of these probabilities, and share_b the share of these points whose label is i.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        bins: the number of bins.
        weights: how many times each point counts, (n,); once without them.

    >>> ece_per_class(torch.tensor([[0.75, 0.25, 0.0], [0.75, 0.25, 0.0]]), torch.tensor([0, 1]))
    tensor([0.2500, 0.2500, 0.0000], dtype=torch.float64)
    """
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    w = weights_or_ones(weights, len(probs))
    gaps = [
        torch.bincount(bin_numbers(own, bins), weights=w * ((labels == i).double() - own)).abs().sum()
        for i, own in enumerate(probs.T)
    ]
    return torch.stack(gaps) / w.sum()
