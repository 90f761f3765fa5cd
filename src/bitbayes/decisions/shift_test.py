"""A rank test in production: is a batch of inputs like the calibration data?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.errors import ArgumentError, DataError
from bitbayes.model import Data
from bitbayes.precision import to_float64
from bitbayes.predicting import Predictor

# `detectable_auroc` is that of a test at this level with this power; their quantiles of the normal law.
LEVEL, POWER = 0.05, 0.8
LEVEL_QUANTILE, POWER_QUANTILE = 1.6448536269514722, 0.8416212335729143
# The exact law takes min(m, n)·m·n steps: up to so many, it is computed (in 0.02 s).
EXACT_STEPS = 2**24
# Up to so many points on the smaller side, a tie counts against an alarm, and the exact law is kept.
FEW_POINTS = 20


@dataclass(frozen=True)
class ShiftResult:
    """How a batch compares with the calibration data.

    p_value: the probability of ranks that are as low or lower, if the batch is drawn as the calibration data
        were. An alarm at `p_value <= 0.05` is false in at most 5% of such batches.
    auroc: P(calibration score > score) + ½ P(both are equal), over pairs of points: ½ if nothing has shifted,
        1 if every input has a lower score than all calibration data.
    detectable_auroc: the AUROC that a test at 5% with so many points notices with a probability of 80%.
        It is infinite if there are too few points for any alarm.
    points: the number of inputs in the batch.
    calibration_points: the number of calibration points.
    """

    p_value: float
    auroc: float
    detectable_auroc: float
    points: int
    calibration_points: int


@dataclass(frozen=True)
class ShiftTest:
    """A one-sided rank test (Mann–Whitney) of the scores of a batch against those of calibration data.

    U = Σ [cᵢ ≤ sⱼ] over n calibration scores c and m scores s of the batch, and p = P(U' ≤ U), where U' is
    U of m + n points in random order. The test keeps the settings that the `Laplace` had then.

    The law of U' is exact up to min(m, n)·m·n = 2²⁴. A tie counts as if the input were more like the data,
    which can only make p larger. If there are ties and more than 20 points on both sides, or still more
    points, the law is normal with midranks, corrected for ties and continuity.

    scores: those of the calibration data in ascending order, (n,) in float64.

    >>> import bitbayes as bb
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> bayes = bb.Laplace(torch.nn.Linear(4, 3), prior_variance=1.0).fit([(x, y)])
    >>> test = bayes.shift_test(torch.randn(100, 4))
    >>> found = test(torch.randn(20, 4))
    >>> found.points, found.calibration_points, round(found.detectable_auroc, 3)
    (20, 100, 0.677)
    """

    scores: Tensor = field(repr=False)
    predictor: Predictor = field(repr=False)

    @torch.no_grad()
    def __call__(self, x: Data) -> ShiftResult:
        """Return how the inputs, together, compare with the calibration data.

        Args:
            x: inputs, or a loader of them, which is tested as one batch.
        """
        posterior = self.predictor.posterior
        posterior.check_unchanged(posterior.model)
        return self.of(_scores(self.predictor, x))

    def of(self, scores: Tensor) -> ShiftResult:
        """Return the same for inputs with these scores (m,), as `Laplace.score` returns them."""
        new, n = _checked(scores), len(self.scores)
        known, m = self.scores, len(scores)
        below = int(torch.searchsorted(known, new).sum())
        at_most = int(torch.searchsorted(known, new, right=True).sum())
        exact = min(m, n) * m * n <= EXACT_STEPS and (below == at_most or min(m, n) <= FEW_POINTS)
        middle = (below + at_most) / 2
        p_value = exact_tail(m, n, at_most) if exact else normal_tail(known, new, middle)
        return ShiftResult(p_value, 1 - middle / (m * n), detectable_auroc(m, n), m, n)

    @classmethod
    def calibrated(cls, predictor: Predictor, data: Data) -> Self:
        """What `Laplace.shift_test` returns."""
        if predictor.posterior.layout.positions:
            raise ArgumentError(
                "the output has positions, and those of one input are not exchangeable with those of "
                "another: the test is for models with one prediction for each input"
            )
        return cls(_checked(_scores(predictor, data)).sort().values, predictor)


def exact_tail(m: int, n: int, u: int) -> float:
    """P(U ≤ u), where U counts the pairs in order among m and n points without ties, in random order.

    The numbers of orders by U are the coefficients of ∏ᵢ (1 − qⁿ⁺ⁱ)/(1 − qⁱ), i = 1, …, m (Mann and Whitney
    1947). Up to 2⁵³ they are exact.
    """
    m, n = min(m, n), max(m, n)
    # The law is symmetric: the shorter of both tails, so that a small p keeps its digits.
    last = min(u, m * n - 1 - u)
    if last < 0:
        return 1.0
    orders = torch.zeros(last + 1, dtype=torch.float64)
    orders[0] = 1.0
    for i in range(1, m + 1):
        orders[n + i :] -= orders[: max(0, last + 1 - n - i)].clone()
        # Divided by 1 − qⁱ: the sum of every i-th coefficient up to this one.
        columns = functional.pad(orders, (0, -(last + 1) % i)).view(-1, i)
        orders = columns.cumsum(0).flatten()[: last + 1]
    tail = float(orders.sum()) / math.comb(m + n, m)  # both are below 1e200 up to EXACT_STEPS
    return tail if last == u else 1 - tail


def normal_tail(known: Tensor, new: Tensor, u: float) -> float:
    """Φ((u + ½ − mn/2)/σ) with σ² = mn/12·(N + 1 − Σ(t³ − t)/(N(N − 1))), N = m + n, over ties of t points.

    Args:
        known: (n,).
        new: (m,).
        u: the number of pairs with a smaller score among the known ones; a tie counts half.
    """
    pairs, total = len(known) * len(new), len(known) + len(new)
    _, counts = torch.unique(torch.cat([known, new]), return_counts=True)
    ties = counts.double()
    tied = float((ties**3 - ties).sum()) / (total * (total - 1))
    deviation = math.sqrt(pairs / 12 * max(0.0, total + 1 - tied))
    if deviation == 0:  # all scores are equal
        return 1.0
    return math.erfc((pairs / 2 - u - 0.5) / (deviation * math.sqrt(2))) / 2


def detectable_auroc(m: int, n: int) -> float:
    """½ + (z₀.₉₅ + z₀.₈)·√((m + n + 1)/(12mn)), at most 1 (Noether 1987); infinite if no p is below 5%.

    It takes the variance of U for that without a shift. With fewer than 10 points the AUROC is far from ½,
    its variance smaller, and the power above 80%.

    >>> [round(detectable_auroc(m, 1000), 2) for m in (20, 50, 100, 500)]
    [0.66, 0.6, 0.58, 0.54]
    """
    # The smallest p is 1/C(m + n, m), which is at most 1/20 if there are 3 points on both sides.
    if math.comb(m + n, min(m, n, 3)) < 1 / LEVEL:
        return math.inf
    quantiles = LEVEL_QUANTILE + POWER_QUANTILE
    return min(1.0, 0.5 + quantiles * math.sqrt((m + n + 1) / (12 * m * n)))


def _scores(predictor: Predictor, x: Data) -> Tensor:
    found = predictor.gaussians(predictor.batches(x))
    return torch.cat([predictor.score(batch, gaussian).cpu() for batch, gaussian in found])


def _checked(scores: Tensor) -> Tensor:
    """The scores in float64 on the CPU; raises if they are not one number for each of some points."""
    if scores.dim() != 1 or len(scores) == 0 or bool(scores.isnan().any()):
        raise DataError(
            f"the scores have the shape {tuple(scores.shape)} and {int(scores.isnan().sum())} NaN among "
            "them: expected one number for each point, (n,), as `score` returns them"
        )
    return to_float64(scores).cpu()
