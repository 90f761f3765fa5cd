"""What every measure checks of its arguments, and returns in float64 on the CPU."""

from fractions import Fraction

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, DataError


def check_probs(probs: Tensor, name: str = "probs") -> Tensor:
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


def check_labels(labels: Tensor, probs: Tensor) -> Tensor:
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


def check_weights(weights: Tensor, n: int) -> Tensor:
    """Check that these are n weights, not all of them 0, and return them in float64 on the CPU."""
    if not isinstance(weights, Tensor) or weights.shape != (n,) or weights.is_complex():
        given = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise DataError(f"weights is {given}: give one number for each point, ({n},)")
    w = weights.detach().to("cpu", torch.float64)
    if not bool(((w >= 0) & w.isfinite()).all()) or not bool(w.any()):
        raise DataError("the weights are not all finite and at least 0, or all of them are 0")
    return w


def weights_or_ones(weights: Tensor | None, n: int) -> Tensor:
    """The weights, checked, in float64 on the CPU; n ones without them."""
    return torch.ones(n, dtype=torch.float64) if weights is None else check_weights(weights, n)


def check_scores(scores: Tensor, name: str) -> Tensor:
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


def check_share(accept: float) -> Fraction:
    """Return the share as an exact fraction; raise if it is not above 0 and at most 1.

    In floating point 0.07 · 100 is 7.000000000000001, so that 8 points would be accepted.
    """
    if not isinstance(accept, (int, float)) or not 0 < accept <= 1:
        raise ArgumentError(f"accept={accept!r}: give the share to accept, above 0 and at most 1")
    return Fraction(str(float(accept)))


def check_values(mean: Tensor, deviation: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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


def bin_numbers(values: Tensor, bins: int) -> Tensor:
    """The number b = 0, …, bins − 1 of the bin, from b/bins to below (b+1)/bins, of each value (n,)."""
    if not isinstance(bins, int) or bins < 1:
        raise ArgumentError(f"bins={bins!r}: give a whole number of bins, at least 1")
    # Only the inner edges. So a value of 1, or slightly more by rounding, falls into the top bin.
    inner_edges = torch.arange(1, bins, dtype=torch.float64) / bins
    return torch.bucketize(values.contiguous(), inner_edges, right=True)


def weighted_mean(values: Tensor, weights: Tensor | None) -> float:
    """The mean of values (n,), in which a point with the weight w counts w times."""
    if weights is None:
        return values.mean().item()
    weights = check_weights(weights, len(values))
    return (weights @ values / weights.sum()).item()


def confidence_of(probs: Tensor) -> Tensor:
    return probs.max(-1).values  # (n,)


def correct_of(probs: Tensor, labels: Tensor) -> Tensor:
    return (probs.argmax(-1) == labels).double()  # (n,)
