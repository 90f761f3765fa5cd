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
LEVEL = 0.95
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
    return {
        "accuracy": accuracy,
        "confidence": mean_confidence,
        "nll": nll,
        "ece": ece,
        "brier": brier,
        "aurc": aurc,
        "augrc": augrc,
    }


def resampled_risks(weights: Tensor, scores: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return AURC and AUGRC, of `metrics`, for each resample, (r,) each.

    A point that was drawn c times counts as c points of the same score. Points of the same score have no
    order. s of them, e of them wrong, follow after m points, w of them wrong. The i-th of them then adds
    (w + i·e/s)/(m + i) to n·AURC and (w + i·e/s)/n to n·AUGRC. The sum over i of the former is
    e + (w − m·e/s)·(ψ(m + s + 1) − ψ(m + 1)), ψ the digamma function, and that of the latter
    (s·w + e·(s + 1)/2)/n.

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
        augrc.append((s * w + e * (s + 1) / 2).sum(1) / n**2)
    return torch.cat(aurc), torch.cat(augrc)


def calibrated_ece(probs: Tensor, seed: int) -> Tensor:
    """Return the ECE of labels that are drawn from the probabilities themselves, (r,): the noise floor.

    Args:
        probs: (n, k).
        seed: of the draws.
    """
    confidence = probs.double().amax(1)
    generator = torch.Generator().manual_seed(seed)
    rows = []
    step = max(1, WEIGHTS_AT_ONCE // len(confidence))
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start), len(confidence)
        right = torch.rand(size, generator=generator, dtype=torch.float64) < confidence  # the likeliest class
        per_bin = _per_bin(confidence, torch.ones_like(confidence)[:, None])  # (n, bins)
        rows.append(((confidence - right.double()) @ per_bin).abs().sum(1) / len(confidence))
    return torch.cat(rows)


def centred(ece: Tensor, measured: float) -> Tensor:
    """Shift the ECE of the resamples, (r,), so that its mean is the measured one. Negative values become 0.

    A resample adds chance to the gap of each bin, and the ECE sums absolute gaps. So it is larger than that
    of the data, most of all for a calibrated classifier. Its measured ECE could lie outside of the interval.
    """
    return (ece - ece.mean() + measured).clamp_min(0)


def resampled_bin_accuracy(weights: Tensor, probs: Tensor, labels: Tensor) -> Tensor:
    """Return the accuracy in each bin of confidence for each resample, (r, bins); NaN where it is empty."""
    confidence, predicted = probs.double().max(1)
    right = (predicted == labels).double()
    sums = weighted_sums(weights, _per_bin(confidence, torch.stack([right, torch.ones_like(right)], 1)))
    bins = sums.shape[1] // 2
    return sums[:, :bins] / sums[:, bins:]


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
    """Return the 95 % interval of each score."""
    return {name: interval(values) for name, values in draws.items()}


def interval(values: Tensor) -> Interval:
    """Return the ends between which the middle 95 % of the values lie.

    >>> interval(torch.linspace(0, 1, 1001, dtype=torch.float64))
    [0.025, 0.975]
    """
    tail = (1 - LEVEL) / 2
    low, high = values.double().nanquantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return [round(low, 12), round(high, 12)]


def compare(draws: dict[str, Tensor], other: dict[str, Tensor], names: Sequence[str]) -> dict[str, str]:
    """Return for each of these scores whether it is "better" than the other method's, "worse" or the "same".

    It is the same unless the interval of the difference, on the same resamples, excludes 0.
    """
    changes = {}
    for name in names:
        low, high = interval(draws[name] - other[name])
        larger = low > 0
        same = low <= 0 <= high
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


def _per_bin(confidence: Tensor, values: Tensor, bins: int = 15) -> Tensor:
    """Spread values (n, v) over the bins of `metrics.reliability`: (n, v·bins), 0 outside an input's bin."""
    edges = torch.arange(1, bins, dtype=torch.float64) / bins
    member = torch.nn.functional.one_hot(torch.bucketize(confidence, edges, right=True), bins).double()
    return (values[:, :, None] * member[:, None, :]).flatten(1)
