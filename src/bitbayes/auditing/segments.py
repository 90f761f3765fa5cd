"""The test inputs by class, or by the values of a column: where is the model worst?"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bitbayes.auditing.findings import FEW_POINTS, KEPT_SHARES, USUAL_SHARE, Interval, Ranking, Segment
from bitbayes.auditing.predictions import Predictions
from bitbayes.decisions.binomial import binomial_tail, upper_bound
from bitbayes.errors import DataError

MOST_SEGMENTS = 200  # more values are no segments
DEVIATIONS = 1.96  # of a normal distribution: 95% are within


def score_segments(
    predicted: Predictions,
    labels: Tensor,
    names: Sequence[str],
    rankings: Mapping[str, Ranking],
    by: str,
) -> list[Segment]:
    """Score the inputs of each name; the worst first, and those with too few points last.

    Args:
        predicted: of the test data, by method.
        labels: (n,).
        names: the segment of each input, (n,).
        rankings: of the methods, for the threshold.
        by: the method by whose accuracy they are sorted.
    """
    distinct = sorted(set(names))
    place = {name: number for number, name in enumerate(distinct)}
    segment = torch.tensor([place[name] for name in names])
    found = [_score(predicted, labels, rankings, name, segment == place[name]) for name in distinct]
    return sorted(found, key=lambda each: (each.few, each.accuracy[by], each.name))


def check_segments(names: Sequence[str], column: str) -> None:
    """Raise unless a column has a few values, each of several inputs."""
    count = len(set(names))
    if count > MOST_SEGMENTS or (count > 1 and count == len(names)):
        raise DataError(
            f"'test': the column {column!r} has {count:,} different values for {len(names):,} inputs: give "
            f"one of at most {MOST_SEGMENTS} groups, such as ranges of a number"
        )


def _score(
    predicted: Predictions, labels: Tensor, rankings: Mapping[str, Ranking], name: str, own: Tensor
) -> Segment:
    n = int(own.sum())
    accuracy: dict[str, float] = {}
    confidence: dict[str, float] = {}
    noise: dict[str, float] = {}
    refused: dict[str, float] = {}
    interval: dict[str, Interval] = {}
    for method, ranking in rankings.items():
        probs, scores = (part[own] for part in predicted[method])
        sure, answers = probs.double().max(1)
        right = int((answers == labels[own]).sum())
        accuracy[method], confidence[method] = right / n, sure.mean().item()
        interval[method] = accuracy_interval(right, n)
        noise[method] = DEVIATIONS * math.sqrt((sure * (1 - sure)).sum().item()) / n
        threshold = ranking.threshold[KEPT_SHARES.index(USUAL_SHARE)]
        refused[method] = (scores.double() < threshold).double().mean().item()
    return Segment(name, n, n < FEW_POINTS, accuracy, confidence, interval, noise, refused)


def accuracy_interval(right: int, n: int) -> Interval:
    """Return the 95% interval of Clopper and Pearson.

    >>> accuracy_interval(10, 10)
    [0.6915028921..., 1.0]
    """
    low = 1 - upper_bound(binomial_tail, n - right, n, 0.025)
    return [low, upper_bound(binomial_tail, right, n, 0.025)]
