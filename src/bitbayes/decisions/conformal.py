"""Split conformal prediction: an exact quantile of calibration data, and how many points it takes.

Of n + 1 exchangeable points, n are for calibration and one is new. Each has a conformity, a number that is
larger if label and prediction agree. The new one's is below the j-th smallest of the others with a
probability of at most j/(n + 1). With j = ⌊(n + 1)(1 − coverage)⌋ this is at most 1 − coverage. If no two
conformities are equal it is above 1 − coverage − 1/(n + 1). Nothing is assumed of their distribution.
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, DataError


def check_coverage(coverage: float) -> Fraction:
    """The coverage as an exact fraction; raises if it is not between 0 and 1.

    In floating point 20 · (1 − 0.95) is 1.0000000000000009, and 10 · (1 − 0.9) is 0.9999999999999998.
    """
    if not isinstance(coverage, (int, float)) or not 0 < coverage < 1:
        raise ArgumentError(f"coverage={coverage!r}: expected a number between 0 and 1")
    return Fraction(str(float(coverage)))


def least_points(coverage: Fraction) -> int:
    """The least n with ⌊(n + 1)(1 − coverage)⌋ ≥ 1: with fewer points there is no such quantile.

    >>> least_points(check_coverage(0.95)), least_points(check_coverage(0.9))
    (19, 9)
    """
    return math.ceil(1 / (1 - coverage)) - 1


def check_points(count: int, coverage: Fraction) -> None:
    """Raise if so few points have no such quantile."""
    least = least_points(coverage)
    if count < least:
        raise DataError(
            f"coverage={float(coverage)} takes {least:,} calibration points, and there are {count:,}: give "
            f"{least - count:,} more, or a lower coverage"
        )


def conformal_quantile(
    conformities: Tensor, coverage: Fraction, *, weights: Tensor | None = None, points: int | None = None
) -> Tensor:
    """The largest t among the conformities with (1 + Σ w over those below t)/(n + 1) ≤ 1 − coverage, ().

    Without weights it is the ⌊(n + 1)(1 − coverage)⌋-th smallest, which is as far from the largest as the
    ⌈(n + 1)·coverage⌉-th smallest of n scores that grow as conformities fall. With weights it is conformal
    risk control (Angelopoulos et al. 2022): a point loses the sum of the weights of its conformities below t,
    at most 1, and a new one loses at most 1 − coverage on average.

    Args:
        conformities: (m,), of at least one point.
        coverage: n is at least `least_points(coverage)`.
        weights: (m,) in float64; all are 1 if there are none.
        points: n, if some points have several conformities or none.
    """
    weights = conformities.new_ones(len(conformities), dtype=torch.float64) if weights is None else weights
    budget = float((1 - coverage) * ((points or len(conformities)) + 1) - 1)
    ordered, order = conformities.sort()
    lost = weights[order].cumsum(0)
    first = int((lost <= budget).sum())  # losses grow: the first conformity that may not be lost
    return ordered[min(first, len(ordered) - 1)]
