"""How well scores tell outliers from data, and where to cut them."""

import math

import torch
from torch import Tensor

from bitbayes.errors import DataError
from bitbayes.metrics.checks import (
    check_probs,
    check_scores,
    check_share,
    check_weights,
    confidence_of,
    weighted_mean,
)

# How much of a sum of weights may be rounding.
ROUNDING = 1e-12


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
    return weighted_mean((smaller + smaller_or_equal).double(), weights_in) / (2 * len(score_out))


def fpr95(probs_in: Tensor, probs_out: Tensor, *, weights_in: Tensor | None = None) -> float:
    """Return the false positive rate at 95% true positives: the share of outliers with score ≥ t.

    t is the `threshold` that accepts 95% of the in-distribution points. The rate is 0 if all outliers have a
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
    scores, order = check_scores(scores, "scores").sort(descending=True)
    if weights is not None:
        totals = check_weights(weights, len(scores))[order].cumsum(0)
        enough = totals >= float(share) * totals[-1] * (1 - ROUNDING)
        return scores[int(enough.nonzero()[0])].item()
    return scores[math.ceil(share * len(scores)) - 1].item()


def _scores_of_both(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores of both sets, (n,) and (m,). For probabilities these are the confidences."""
    dims = [each.dim() for each in (first, second) if isinstance(each, Tensor)]
    if dims == [1, 1]:
        return check_scores(first, "probs_in"), check_scores(second, "probs_out")
    if sorted(dims) == [1, 2]:
        raise DataError(
            f"probs_in has shape {tuple(first.shape)} and probs_out has shape {tuple(second.shape)}: "
            "give two sets of probabilities, (n, k) and (m, k), or two of scores, (n,) and (m,)"
        )
    probs = check_probs(first, "probs_in"), check_probs(second, "probs_out")
    return confidence_of(probs[0]), confidence_of(probs[1])
