"""Exact tests of a risk: p-values that are never too small, and the bounds that belong to them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import torch

# From total losses, the number of points, and a risk to a p-value, which falls as the risk grows.
PValue = Callable[[float, int, float], float]
# Halvings of an interval of length 1.
STEPS = 60


def binomial_tail(errors: float, n: int, risk: float) -> float:
    """P(Bin(n, risk) ≤ errors), for 0 < risk < 1: the p-value of "the error rate is above `risk`".

    >>> round(binomial_tail(1, 2, 0.5), 12)
    0.75
    """
    if errors >= n:
        return 1.0
    i = torch.arange(math.floor(errors) + 1, dtype=torch.float64)
    ways = math.lgamma(n + 1) - (i + 1).lgamma() - (n - i + 1).lgamma()
    terms = ways + i * math.log(risk) + (n - i) * math.log1p(-risk)
    return min(1.0, float(terms.exp().sum()))


def hoeffding_bentkus(total: float, n: int, risk: float) -> float:
    """The p-value of "the mean is above `risk`" for n losses between 0 and 1 with this sum.

    min(exp(−n·h(min(r̂, risk), risk)), e·P(Bin(n, risk) ≤ ⌈n·r̂⌉)), with r̂ their mean and h the divergence of
    `divergence` (Bates, Angelopoulos, Lei, Malik and Jordan 2021).
    """
    hoeffding = math.exp(-n * divergence(min(total / n, risk), risk))
    return min(1.0, hoeffding, math.e * binomial_tail(math.ceil(total), n, risk))


def divergence(rate: float, risk: float) -> float:
    """rate·log(rate/risk) + (1 − rate)·log((1 − rate)/(1 − risk)), for rates from 0 to below 1."""
    first = rate * math.log(rate / risk) if rate else 0.0
    return first + (1 - rate) * (math.log1p(-rate) - math.log1p(-risk))


def least_points(risk: float, alpha: float) -> int:
    """The least n for which no error suffices: (1 − risk)ⁿ ≤ alpha.

    >>> least_points(0.05, 0.05), least_points(0.01, 0.05)
    (59, 299)
    """
    return math.ceil(min(math.log(alpha) / math.log1p(-risk), sys.maxsize))  # infinite for risks below 1e-308


def upper_bound(p_value: PValue, total: float, n: int, alpha: float) -> float:
    """The largest risk with a p-value above alpha; for `binomial_tail` it is that of Clopper and Pearson."""
    if total >= n:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(total, n, middle) > alpha else (low, middle)
    return high
