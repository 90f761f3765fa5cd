"""How each method ranks inputs, and which outliers get through a threshold."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bitbayes import metrics
from bitbayes.auditing.findings import HISTOGRAM_BINS, KEPT_SHARES, Passing, Ranking
from bitbayes.auditing.predictions import Predictions, Ranked

# A confidence of 1 is drawn at this distance from 1: float32 has hardly any number in between.
NEAREST_TO_ONE = 1e-7
# This share of each set may lie beyond each end of the axis.
BEYOND = 0.01


def rank_test(
    on_test: Predictions, sets: list[dict[str, Ranked]], by: Mapping[str, str]
) -> dict[str, Ranking]:
    """Return the ranking of each method, with an axis that shows the test data and all sets of outliers.

    `by`: what the scores of each method are, as in `Ranking`.
    """
    return {
        method: _rank(
            by[method],
            rated.scores,
            [ranked[method].scores for ranked in sets],
        )
        for method, rated in on_test.items()
    }


def rank_outliers(ranking: Ranking, scores: Tensor) -> Passing:
    """Return how many outliers get through each threshold, from their scores (m,)."""
    thresholds = torch.tensor(ranking.threshold, dtype=torch.float64)
    # (shares,) the number of outliers below each threshold.
    below = torch.searchsorted(scores.double().sort().values, thresholds)
    return Passing(
        histogram=_histogram(_on_axis(ranking.by, scores), ranking.low, ranking.high),
        share=(1 - below.double() / len(scores)).tolist(),
    )


def _rank(by: str, scores: Tensor, others: list[Tensor]) -> Ranking:
    thresholds = [metrics.threshold(scores, accept=share) for share in KEPT_SHARES]
    ends = [_central_range(_on_axis(by, values)) for values in (scores, *others)]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    high = high if high > low else low + 1.0
    positions = (_on_axis(by, torch.tensor(thresholds)) - low) / (high - low)
    return Ranking(
        by=by,
        threshold=thresholds,
        low=low,
        high=high,
        position=positions.clamp(0, 1).tolist(),
        histogram=_histogram(_on_axis(by, scores), low, high),
    )


def _on_axis(by: str, scores: Tensor) -> Tensor:
    """Return a score s as ±log(1 + |s|), and a confidence p as log(p/(1 − p)): most of them are close to 1.

    Scores far away are some hundred times those of the test data.
    """
    scores = scores.double()
    if by != "confidence":
        return scores.sign() * scores.abs().log1p()
    return scores.clamp(NEAREST_TO_ONE, 1 - NEAREST_TO_ONE).logit()


def _central_range(values: Tensor) -> tuple[float, float]:
    """Return the range of the values without the share `BEYOND` at each end."""
    values = values.sort().values
    outer = int(BEYOND * len(values))
    return values[outer].item(), values[-1 - outer].item()


def _histogram(values: Tensor, low: float, high: float) -> list[int]:
    return [int(count) for count in values.clamp(low, high).histc(HISTOGRAM_BINS, low, high)]
