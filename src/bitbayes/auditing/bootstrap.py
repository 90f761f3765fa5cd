"""The bootstrap: how much would a score change with other inputs of the same kind?

A resample draws as many inputs as there are, with replacement. Weights (r, n) count how often each of r
resamples has each of n inputs. All methods get the same resamples, so that two methods are compared on the
same inputs.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bitbayes import metrics
from bitbayes.auditing.findings import USUAL_SHARE, Interval

RESAMPLES = 300
SMOOTH_RESAMPLES = 50  # of the smooth calibration error, which takes milliseconds for each
BINS = 15  # those of `metrics`
LEVEL = 0.95
ROUNDING = 1e-6  # two scores that differ by less are the same
# The largest number of weights that are converted to floating point at a time.
WEIGHTS_AT_ONCE = 10_000_000

# Whether a larger score is better. On the test data no mean confidence is better than another one.
LARGER_IS_BETTER = {
    "accuracy": True,
    "auroc": True,
    "nll": False,
    "ece": False,
    "brier": False,
    "aurc": False,
    "augrc": False,
    "fpr95": False,
}


# What a resample makes larger, or smaller, because chance is added. See `centred`.
SHIFTED = ("ece", "smooth_ece", "debiased_rmsce", "classwise_ece", "brier_calibration", "brier_refinement")


def resample(n: int, seed: int) -> Tensor:
    """Return the weights of `RESAMPLES` resamples of n inputs, (r, n), as small integers."""
    generator = torch.Generator().manual_seed(seed)
    rows = (torch.randint(n, (n,), generator=generator).bincount(minlength=n) for _ in range(RESAMPLES))
    return torch.stack([row.to(torch.uint8) for row in rows])


def resampled_test_scores(weights: Tensor, probs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return each score of the test data for each resample, (r,).

    Args:
        weights: (r, n).
        probs: (n, k).
        labels: (n,).
    """
    probs = probs.double()
    confidence, predicted = probs.max(1)
    right = (predicted == labels).double()
    label_probs = probs.gather(1, labels[:, None])[:, 0]
    per_input = torch.stack(
        [
            right,
            confidence,
            -label_probs.clamp_min(torch.finfo(torch.float32).tiny).log(),
            probs.square().sum(1) - 2 * label_probs + 1,  # Σᵢ (pᵢ − [i = y])²
        ],
        dim=1,
    )  # (n, 4)
    accuracy, mean_confidence, nll, brier = (weighted_sums(weights, per_input) / len(labels)).T
    gaps = _per_bin(confidence, (confidence - right)[:, None])  # (n, bins)
    ece = weighted_sums(weights, gaps).abs().sum(1) / len(labels)
    aurc, augrc = resampled_risks(weights, confidence, right)
    debiased = resampled_debiased(weights, confidence, right)
    return {
        "accuracy": accuracy,
        "confidence": mean_confidence,
        "nll": nll,
        "ece": ece,
        "brier": brier,
        "aurc": aurc,
        "augrc": augrc,
        "debiased_rmsce": debiased,
        "smooth_ece": resampled_smooth(weights, probs, labels),
        **resampled_classes(weights, probs, labels),
    }


def resampled_risks(weights: Tensor, scores: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return AURC and AUGRC, of `metrics`, for each resample, (r,) each.

    A point that was drawn c times counts as c points of the same score. Points of the same score have no
    order. s of them, e of them wrong, follow after m points, w of them wrong. The i-th of them then adds
    (w + i·e/s)/(m + i) to n·AURC. The sum over i is e + (w − m·e/s)·(ψ(m + s + 1) − ψ(m + 1)), ψ the digamma
    function. Together they add s·(w + e/2)/n to n·AUGRC.

    Args:
        weights: (r, n).
        scores: (n,), larger for inputs that are accepted earlier.
        right: 1 for the inputs whose answer is right, otherwise 0, (n,).
    """
    n = len(scores)
    descending, order = scores.sort(descending=True, stable=True)
    last = torch.nn.functional.pad(
        descending[1:] != descending[:-1], (0, 1), value=True
    )  # of its score, (n,)
    wrong = 1 - right[order]
    # ψ is looked up: its arguments are whole numbers up to n + 1.
    digamma = torch.special.digamma(torch.arange(1, n + 2, dtype=torch.float64))  # (n + 1,) of i + 1
    aurc, augrc = [], []
    step = max(1, WEIGHTS_AT_ONCE // n)
    for start in range(0, len(weights), step):
        counts = weights[start : start + step][:, order].long()  # (r, n)
        passed, errors = counts.cumsum(1)[:, last], (counts * wrong).cumsum(1)[:, last]  # (r, scores)
        m, w = (torch.nn.functional.pad(each[:, :-1], (1, 0)) for each in (passed, errors))
        s, e = passed - m, errors - w
        harmonic = digamma[passed] - digamma[m]
        aurc.append((e + (w - m * e / s.clamp_min(1)) * harmonic).sum(1) / n)
        augrc.append((s * (w + e / 2)).sum(1) / n**2)
    return torch.cat(aurc), torch.cat(augrc)


def resampled_classes(weights: Tensor, probs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the class-wise ECE, and calibration and refinement of the Brier score, for each resample, (r,).

    All three are sums over classes and bins of a class's probability: of |g|, g²/c and s(1 − s/c). c is the
    number of points in the bin, s that of those whose label is the class, and g is s minus the sum of the
    probabilities. Most probabilities are in the lowest bin, whose sums are what the others leave.

    Args:
        weights: (r, n).
        probs: (n, k).
        labels: (n,).
    """
    probs = probs.double()
    n, k = probs.shape
    is_label = torch.nn.functional.one_hot(labels, k).double()  # (n, k)
    bin_of = torch.bucketize(probs, torch.arange(1, BINS, dtype=torch.float64) / BINS, right=True)  # (n, k)
    rows, classes = bin_of.nonzero(as_tuple=True)  # those above the lowest bin
    place = classes * BINS + bin_of[rows, classes]
    values = torch.stack((is_label - probs, is_label, torch.ones_like(probs)))  # (3, n, k)
    found: dict[str, list[Tensor]] = {"classwise_ece": [], "brier_calibration": [], "brier_refinement": []}
    step = max(1, WEIGHTS_AT_ONCE // max(n, len(rows), k * BINS))
    for start in range(0, len(weights), step):
        own = weights[start : start + step].double()  # (r, n)
        drawn = own.T[rows]  # (places, r)
        sums = torch.zeros(3, k * BINS, len(own), dtype=torch.float64)
        for part, each in zip(sums, values, strict=True):
            part.index_add_(0, place, each[rows, classes][:, None] * drawn)
        sums = sums.view(3, k, BINS, -1)
        sums[:, :, 0] = (own @ values).transpose(1, 2) - sums.sum(2)
        g, s, c = sums.flatten(1, 2)  # (k·bins, r) each
        c = c.clamp_min(1)  # in an empty bin the others are 0
        found["classwise_ece"].append(g.abs().sum(0) / (n * k))
        found["brier_calibration"].append((g.square() / c).sum(0) / n)
        found["brier_refinement"].append((s * (1 - s / c)).sum(0) / n)
    return {name: torch.cat(parts) for name, parts in found.items()}


def resampled_debiased(weights: Tensor, confidence: Tensor, right: Tensor) -> Tensor:
    """Return `metrics.debiased_rmsce` for each resample, (r,).

    A point that was drawn c times counts c times, and makes no pair with itself.

    Args:
        weights: (r, n).
        confidence: (n,).
        right: 1 for the inputs whose answer is right, otherwise 0, (n,).
    """
    r = right - confidence
    once = _per_bin(confidence, torch.stack([torch.ones_like(r), r], 1))
    count, total = weighted_sums(weights, once).chunk(2, dim=1)  # (r, bins) each
    twice = _per_bin(confidence, torch.stack([torch.ones_like(r), r.square()], 1))
    squared_count, squares = weighted_sums(weights.int().square(), twice).chunk(2, dim=1)
    pairs = count.square() - squared_count
    square = torch.where(pairs > 0, count * (total.square() - squares) / pairs.clamp_min(1), 0.0)
    return (square.sum(1) / len(right)).clamp(0, 1).sqrt()


def resampled_smooth(weights: Tensor, probs: Tensor, labels: Tensor) -> Tensor:
    """Return `metrics.smooth_ece` for the first `SMOOTH_RESAMPLES` resamples."""
    first = weights[:SMOOTH_RESAMPLES]
    return torch.tensor(
        [metrics.smooth_ece(probs, labels, weights=row) for row in first], dtype=torch.float64
    )


def centred(draws: Tensor, measured: float) -> Tensor:
    """Shift the errors of the resamples, (r,), so that their mean is the measured one. None is below 0.

    A resample adds chance to the gap of each bin, and the ECE sums absolute gaps. So it is larger than that
    of the data, most of all for a calibrated classifier. Its measured ECE could lie outside of the interval.
    The same holds for all of `SHIFTED`.
    """
    return (draws - draws.mean() + measured).clamp_min(0)


def resampled_outlier_scores(
    weights: Tensor, inside: Tensor, outlier_weights: Tensor, outside: Tensor, confidence: Tensor
) -> dict[str, Tensor]:
    """Return the scores of a set of outliers for each resample of the test data and of the outliers, (r,).

    Args:
        weights: of the test data, (r, n).
        inside: the scores that rank the test data, (n,).
        outlier_weights: (r, m).
        outside: the scores that rank the outliers, (m,).
        confidence: the outliers' confidence, (m,).
    """
    n, m = len(inside), len(outside)
    inside, order = inside.sort()
    outside, outlier_order = outside.sort()
    below, not_above = torch.searchsorted(inside, outside), torch.searchsorted(inside, outside, right=True)
    most_below = n - math.ceil(metrics.check_share(USUAL_SHARE) * n)  # the threshold
    auroc, fpr95 = [], []
    step = max(1, WEIGHTS_AT_ONCE // max(n, m))
    for start in range(0, len(weights), step):
        test_counts = weights[start : start + step][:, order].double()
        outlier_counts = outlier_weights[start : start + step][:, outlier_order].double()
        # (r, n + 1): how many test inputs are among the first i.
        up_to = torch.nn.functional.pad(test_counts.cumsum(1), (1, 0))
        ranks_above = n - (up_to[:, below] + up_to[:, not_above]) / 2  # (r, m)
        auroc.append((outlier_counts * ranks_above).sum(1) / (n * m))
        # The threshold is the lowest test input at which the count from below exceeds `most_below`.
        threshold = inside[(up_to[:, 1:] <= most_below).sum(1)]  # (r,)
        first_through = torch.searchsorted(outside, threshold)  # (r,)
        outliers_up_to = torch.nn.functional.pad(outlier_counts.cumsum(1), (1, 0))
        fpr95.append(1 - outliers_up_to.gather(1, first_through[:, None])[:, 0] / m)
    mean = weighted_sums(outlier_weights, confidence.double()[:, None])[:, 0] / m
    return {"confidence": mean, "auroc": torch.cat(auroc), "fpr95": torch.cat(fpr95)}


def weighted_sums(weights: Tensor, values: Tensor) -> Tensor:
    """Return weights @ values, (r, v), a few resamples at a time."""
    step = max(1, WEIGHTS_AT_ONCE // weights.shape[1])
    parts = [weights[start : start + step].double() @ values for start in range(0, len(weights), step)]
    return torch.cat(parts)


def intervals(draws: dict[str, Tensor]) -> dict[str, Interval]:
    """Return the 95% interval of each score."""
    return {name: interval(values) for name, values in draws.items()}


def interval(values: Tensor) -> Interval:
    """Return the ends between which the middle 95% of the values lie.

    >>> interval(torch.linspace(0, 1, 1001, dtype=torch.float64))
    [0.025, 0.975]
    """
    tail = (1 - LEVEL) / 2
    low, high = values.double().nanquantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return [round(low, 12), round(high, 12)]


def compare(draws: dict[str, Tensor], other: dict[str, Tensor], names: Sequence[str]) -> dict[str, str]:
    """Return for each of these scores whether it is "better" than the other method's, "worse" or the "same".

    It is the same unless the interval of the difference, on the same resamples, excludes 0, and by more than
    the rounding of probabilities in float32.
    """
    changes = {}
    for name in names:
        low, high = interval(draws[name] - other[name])
        larger = low > 0
        same = low <= ROUNDING and high >= -ROUNDING
        changes[name] = "same" if same else "better" if larger == LARGER_IS_BETTER[name] else "worse"
    return changes


def compare_all(
    draws: dict[str, dict[str, Tensor]], names: Sequence[str], columns: Iterable[str]
) -> dict[str, dict[str, dict[str, str]]]:
    """Return what `compare` finds for each method against each other one that has a column."""
    return {
        method: {other: compare(own, draws[other], names) for other in columns if other != method}
        for method, own in draws.items()
    }


def mean_draws(sets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean over several sets of outliers, for each score and resample."""
    return {name: torch.stack([draws[name] for draws in sets]).mean(0) for name in sets[0]}


def _per_bin(confidence: Tensor, values: Tensor, bins: int = BINS) -> Tensor:
    """Spread values (n, v) over the bins of `metrics.reliability`: (n, v·bins), 0 outside an input's bin."""
    edges = torch.arange(1, bins, dtype=torch.float64) / bins
    member = torch.nn.functional.one_hot(torch.bucketize(confidence, edges, right=True), bins).double()
    return (values[:, :, None] * member[:, None, :]).flatten(1)
