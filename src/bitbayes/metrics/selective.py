"""Selective prediction: the errors among the points with the largest scores."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.errors import DataError
from bitbayes.metrics.checks import check_scores, weights_or_ones


@dataclass(frozen=True)
class RiskCoverage:
    """The share of errors among accepted points, for each share of accepted points. See `risk_coverage`."""

    coverage: Tensor  # (n,) share of points that are accepted: 1/n, 2/n, …, 1
    risk: Tensor  # (n,) share of errors among them


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
    scores, correct = check_scores(scores, "scores"), _check_correct(correct, scores)
    _, tie, size = torch.unique(-scores, return_inverse=True, return_counts=True)  # the largest score first
    wrong = torch.bincount(tie, weights=(~correct).double())  # (ties,)
    accepted = torch.arange(1, len(scores) + 1, dtype=torch.float64)  # (n,)
    errors = (wrong / size).repeat_interleave(size).cumsum(0)  # (n,)
    return RiskCoverage(accepted / len(scores), errors / accepted)


def _check_correct(correct: Tensor, scores: Tensor) -> Tensor:
    """Check that there is one boolean for each score, and return them on the CPU."""
    if not isinstance(correct, Tensor) or correct.dtype != torch.bool or correct.shape != scores.shape:
        given = (
            f"{correct.dtype} {tuple(correct.shape)}"
            if isinstance(correct, Tensor)
            else type(correct).__name__
        )
        raise DataError(f"correct is {given}: give booleans of shape {tuple(scores.shape)}, as scores has")
    return correct.detach().cpu()


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
    sizes, errors = _per_tie(scores, correct, weights)
    sizes, errors = sizes[sizes > 0], errors[sizes > 0]
    before, wrong = sizes.cumsum(0) - sizes, errors.cumsum(0) - errors
    harmonic = torch.special.digamma(before + sizes + 1) - torch.special.digamma(before + 1)
    rate = errors / sizes
    return float((errors + (wrong - before * rate) * harmonic).sum() / sizes.sum())


def augrc(scores: Tensor, correct: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the area under the generalised risk-coverage curve (Traub et al. 2024): Σᵢ (Gᵢ₋₁ + Gᵢ)/(2n).

    Gᵢ is the number of errors among the points with the i largest scores, divided by n, and not by i as in
    `aurc`. Of all points, it is the share that is accepted and wrong. The sum is the area under straight
    lines from G₀ = 0 to Gₙ, the error rate e, so it is between e²/2 and e − e²/2, and at most ½. Points with
    equal scores count with the mean error of all of them.

    It is e(1 − e)·(1 − AUROC) + e²/2. AUROC is that of the scores of right predictions against those of
    wrong ones.

    Args:
        scores: (n,), larger for points that are accepted earlier.
        correct: whether the predicted class is the label, (n,) booleans.
        weights: how many times each point counts, (n,); once without them.

    >>> augrc(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([True, True, True, False]))
    0.03125
    """
    sizes, errors = _per_tie(scores, correct, weights)
    total = sizes.sum()
    sizes, errors = sizes / total, errors / total
    before = errors.cumsum(0) - errors
    return float((sizes * (before + errors / 2)).sum())


def _per_tie(scores: Tensor, correct: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weight of the points with each distinct score, the largest first, and that of the wrong ones."""
    scores = check_scores(scores, "scores")
    w = weights_or_ones(weights, len(scores))
    _, tie = torch.unique(-scores, return_inverse=True)
    wrong = ~_check_correct(correct, scores)
    return torch.bincount(tie, weights=w), torch.bincount(tie, weights=w * wrong)  # (ties,) each
