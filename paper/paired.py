"""Paired tests over random splits and over data sets, and Holm's correction for several of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats  # type: ignore[import-untyped,unused-ignore]


class Compared(NamedTuple):
    """A mean difference, half the width of its 95% interval, and the two-sided p-value of no difference."""

    mean: float
    margin: float
    p: float


def compare(differences: Sequence[float], test_per_train: float) -> Compared:
    """Compare two methods by their differences over J random splits of one data set.

    t = d̄ / √((1/J + n_test/n_train) s²) has about Student's distribution with J − 1 degrees of freedom
    (Nadeau and Bengio, 2003). The splits share rows, so that 1/J alone would make the interval too short.

    >>> compare([1.0, 2.0, 3.0], 0.0).p == float(stats.ttest_1samp([1.0, 2.0, 3.0], 0.0).pvalue)
    True
    """
    count = len(differences)
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    error = deviation * math.sqrt(1 / count + test_per_train)
    if not error:
        return Compared(mean, 0.0, 0.0 if mean else 1.0)
    margin = error * float(stats.t.ppf(0.975, count - 1))
    return Compared(mean, margin, float(2 * stats.t.sf(abs(mean) / error, count - 1)))


def compare_sets(differences: Sequence[float]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test, with one difference for each data set.

    >>> round(compare_sets([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 5)  # 2 / 2⁶
    0.03125
    """
    if not any(differences):
        return 1.0
    return float(stats.wilcoxon(differences).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: the i-th smallest of m times m + 1 − i, none below that of a smaller one.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
