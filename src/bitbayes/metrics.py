"""How good and how honest are these probabilities? Plain functions on tensors, each giving one float.

`probs` is (n, k): one row of k class probabilities per point, rows that sum to one (a single-logit network
gives (n, 2)). `labels` is (n,): whole numbers from 0 to k − 1. The *confidence* of a point is its largest
probability. Every sum is taken in float64 on the CPU, so that the device and its dtypes play no part.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, DataError


@dataclass(frozen=True)
class Reliability:
    """What each confidence bin holds; see `reliability`."""

    count: Tensor  # (bins,) number of points, int64
    confidence: Tensor  # (bins,) mean confidence, NaN where the bin is empty
    accuracy: Tensor  # (bins,) share of correct labels, NaN where the bin is empty


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of points whose most probable class is the label: 1/n Σ [arg max pₙ = yₙ].

    `probs` (n, k), `labels` (n,). Of equal largest probabilities the first class counts.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
    0.5
    """
    probs = _checked_probs(probs)
    labels = _checked_labels(labels, probs)
    return _correct(probs, labels).mean().item()


def mmc(probs: Tensor) -> float:
    """Mean maximum confidence: 1/n Σ maxᵢ pₙᵢ, with `probs` (n, k).

    >>> mmc(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    0.625
    """
    return _confidence(_checked_probs(probs)).mean().item()


def entropy(probs: Tensor) -> float:
    """Mean predictive entropy in nats: −1/n Σₙ Σᵢ pₙᵢ log pₙᵢ, where 0 log 0 = 0; `probs` (n, k).

    >>> round(entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])), 4)  # half of log 2
    0.3466
    """
    per_point: Tensor = torch.special.entr(_checked_probs(probs)).sum(-1)  # (n,)
    return per_point.mean().item()


def auroc(probs_in: Tensor, probs_out: Tensor) -> float:
    """Area under the ROC curve: P(score_in > score_out) + ½ P(score_in = score_out).

    `probs_in` (n, k) are in-distribution and the positive class, `probs_out` (m, k) are outliers; the score
    is the confidence. 1 means told apart, ½ means not at all, below ½ that outliers get more confidence.

    >>> auroc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([[0.6, 0.4], [0.5, 0.5]]))
    0.875
    """
    score_in = _confidence(_checked_probs(probs_in, "probs_in"))  # (n,)
    score_out = _confidence(_checked_probs(probs_out, "probs_out")).sort().values  # (m,)
    below = torch.searchsorted(score_out, score_in)  # (n,) outliers with a smaller score
    up_to = torch.searchsorted(score_out, score_in, right=True)  # (n,) with a smaller or equal one
    return ((below + up_to).double().mean() / (2 * len(score_out))).item()


def fpr95(probs_in: Tensor, probs_out: Tensor) -> float:
    """False positive rate at 95 % true positives: share of outliers with score ≥ t.

    t = the largest in-distribution score for which at least 95 % of the n in-distribution points have
    score ≥ t, that is, the ⌈0.95 n⌉-th largest. A point whose score equals t is kept, on both sides. As in
    `auroc`, the score is the confidence, and `probs_in` (n, k) is the positive class; `probs_out` (m, k).
    0 means told apart, 1 that no outlier is found.

    >>> fpr95(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([[0.6, 0.4], [0.5, 0.5]]))
    0.5
    """
    score_in = _confidence(_checked_probs(probs_in, "probs_in")).sort(descending=True).values  # (n,)
    score_out = _confidence(_checked_probs(probs_out, "probs_out"))  # (m,)
    # In whole numbers, because 0.95 · n in floating point can land on the wrong side of a whole number.
    kept = (19 * len(score_in) + 19) // 20
    return (score_out >= score_in[kept - 1]).double().mean().item()


def reliability(probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Points by confidence in `bins` bins of equal width: what a reliability diagram draws.

    Bin b = 0, …, bins − 1 is b/bins ≤ confidence < (b+1)/bins; the top bin is closed, so a confidence of
    exactly 1 belongs to it. `probs` (n, k), `labels` (n,) → three tensors (bins,): the number of points,
    their mean confidence and their accuracy, the last two NaN where there is no point.

    >>> reliability(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), torch.tensor([0, 1]), bins=2)
    Reliability(count=tensor([0, 2]), confidence=tensor([   nan, 0.8750], dtype=torch.float64),
                accuracy=tensor([   nan, 0.5000], dtype=torch.float64))
    """
    if not isinstance(bins, int) or bins < 1:
        raise ArgumentError(f"bins={bins!r}: give a whole number of bins, at least 1")
    probs = _checked_probs(probs)
    labels = _checked_labels(labels, probs)
    confidence = _confidence(probs)  # (n,)
    # Only the inner edges: whatever lies above the last, 1 and a rounding error more included, is top bin.
    inner_edges = torch.arange(1, bins, dtype=torch.float64) / bins
    bin_of = torch.bucketize(confidence, inner_edges, right=True)  # (n,)
    count = torch.bincount(bin_of, minlength=bins)  # (bins,)

    def mean_per_bin(values: Tensor) -> Tensor:
        return torch.bincount(bin_of, weights=values, minlength=bins) / count  # 0/0 = NaN in an empty bin

    return Reliability(count, mean_per_bin(confidence), mean_per_bin(_correct(probs, labels)))


def ece(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error: Σ_b count_b/n · |accuracy_b − confidence_b| over the bins of `reliability`.

    `probs` (n, k), `labels` (n,).

    >>> ece(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1, 0, 0]))
    0.375
    """
    count, gap = _gaps(probs, labels, bins)
    return ((count * gap).sum() / count.sum()).item()


def mce(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Maximum calibration error: max_b |accuracy_b − confidence_b| over the non-empty bins of `reliability`.

    `probs` (n, k), `labels` (n,).

    >>> mce(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1, 0, 0]))
    0.5
    """
    _, gap = _gaps(probs, labels, bins)
    return gap.max().item()


def brier(probs: Tensor, labels: Tensor) -> float:
    """Brier score: 1/n Σₙ Σᵢ (pₙᵢ − [yₙ = i])²: summed over classes, so between 0 and 2.

    `probs` (n, k), `labels` (n,). Some libraries halve it for two classes.

    >>> brier(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([0, 0]))
    0.0625
    """
    probs = _checked_probs(probs)
    labels = _checked_labels(labels, probs)
    one_hot = torch.nn.functional.one_hot(labels, probs.shape[1])  # (n, k)
    return (probs - one_hot).square().sum(-1).mean().item()


def nll(probs: Tensor, labels: Tensor) -> float:
    """Negative log-likelihood in nats: −1/n Σ log pₙ,yₙ, with `probs` (n, k) and `labels` (n,).

    Always finite: a probability below the smallest normal number of its dtype (half precisions: of float32)
    counts as that number. So a zero for the true label costs 87.3 nats, in float64 708.4, and not infinity.

    >>> round(nll(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1])), 4)  # half of log 2
    0.3466
    """
    p = _checked_probs(probs)
    labels = _checked_labels(labels, p)
    floor = torch.finfo(torch.promote_types(probs.dtype, torch.float32)).tiny
    return -p.gather(1, labels[:, None]).clamp(min=floor).log().mean().item()


def _confidence(probs: Tensor) -> Tensor:
    return probs.max(-1).values  # (n,)


def _correct(probs: Tensor, labels: Tensor) -> Tensor:
    return (probs.argmax(-1) == labels).double()  # (n,)


def _gaps(probs: Tensor, labels: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Count and |accuracy − confidence| of the non-empty bins."""
    per_bin = reliability(probs, labels, bins)
    occupied = per_bin.count > 0
    return per_bin.count[occupied], (per_bin.accuracy - per_bin.confidence)[occupied].abs()


def _checked_probs(probs: Tensor, name: str = "probs") -> Tensor:
    """`probs` in float64 on the CPU, after a check that they are probabilities."""
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
    if off > _tolerance(probs):
        raise DataError(
            f"rows of {name} must sum to one, but one is off by {off:.3g}, more than rounding in "
            f"{probs.dtype} explains ({_tolerance(probs):.2g}): give probabilities, not logits or scores"
        )
    return p


def _tolerance(probs: Tensor) -> float:
    """How far from one rounding can bring the sum of a row.

    Non-negative entries with relative errors ≤ r have a sum with relative error ≤ r. Rounding an entry to its
    dtype loses ε/2. If its logarithm was rounded to that dtype, that loses |log p| · ε/2, and the row's sum
    entropy · ε/2, at most 3.5 ε for a thousand classes: together 4 ε. The normalising sum over k classes and
    an average over 100 draws add their terms in float32 or better, one ε of float32 a term at worst; float64
    gets the same, as its numbers often were float32 before.
    """
    single = torch.finfo(torch.float32).eps
    return 4 * torch.finfo(probs.dtype).eps + (probs.shape[1] + 100) * single


def _checked_labels(labels: Tensor, probs: Tensor) -> Tensor:
    """`labels` as int64 on the CPU, after a check that they are classes of these `probs`."""
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
