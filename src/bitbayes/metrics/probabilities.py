"""Measures of probabilities by themselves, and the two proper scores."""

import torch
from torch import Tensor

from bitbayes.metrics.checks import check_labels, check_probs, confidence_of, correct_of, weighted_mean


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
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    return weighted_mean(correct_of(probs, labels), weights)


def mmc(probs: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the mean maximum confidence, 1/n Σ maxᵢ pₙᵢ, of `probs` (n, k).

    Args:
        probs: probabilities (n, k).
        weights: how many times each point counts, (n,); once without them.

    >>> mmc(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    0.625
    """
    return weighted_mean(confidence_of(check_probs(probs)), weights)


def entropy(probs: Tensor) -> float:
    """Return the mean predictive entropy of `probs` (n, k) in nats: −1/n Σₙ Σᵢ pₙᵢ log pₙᵢ, with 0 log 0 = 0.

    >>> round(entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])), 4)  # half of log 2
    0.3466
    """
    per_point: Tensor = torch.special.entr(check_probs(probs)).sum(-1)  # (n,)
    return per_point.mean().item()


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
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    one_hot = torch.nn.functional.one_hot(labels, probs.shape[1])  # (n, k)
    return weighted_mean((probs - one_hot).square().sum(-1), weights)


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
    p = check_probs(probs)
    labels = check_labels(labels, p)
    floor = torch.finfo(torch.promote_types(probs.dtype, torch.float32)).tiny
    return -weighted_mean(p.gather(1, labels[:, None])[:, 0].clamp(min=floor).log(), weights)
