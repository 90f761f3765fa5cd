"""The calibration error that chance alone explains."""

from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.metrics.checks import bin_numbers, check_probs, confidence_of, weights_or_ones

# So many random numbers are in memory at a time.
NUMBERS_AT_A_TIME = 2**20


class CalibrationFloor(NamedTuple):
    """The ECE of a perfectly calibrated model, over draws of the labels. See `calibration_floor`."""

    mean: float
    low: float  # 2.5% of the draws are below
    high: float  # 2.5% of the draws are above


def calibration_floor(
    probs: Tensor, bins: int = 15, *, draws: int = 1000, seed: int = 0, weights: Tensor | None = None
) -> CalibrationFloor:
    """Return the `ece` that a perfectly calibrated model with these confidences has: mean and 95% interval.

    A draw is Σ_b 1/n · |Σᵢ∈b (zᵢ − cᵢ)|, zᵢ ~ Bernoulli(cᵢ). cᵢ is the confidence of the point i, and zᵢ says
    whether the predicted class is right. So the labels are drawn from the model's own probabilities. Such
    an ECE is not 0: it shrinks like 1/√n with n points. One that is not above `high` may be chance.

    The time grows like n · draws, one second for about 10⁸.

    Args:
        probs: probabilities (n, k).
        bins: the number of bins, as in `ece`.
        draws: how many times all labels are drawn.
        seed: of the random numbers. The same arguments give the same result.
        weights: how many times each point counts, (n,); once without them.

    >>> floor = calibration_floor(torch.tensor([[0.75, 0.25]]).expand(100, 2))
    >>> print(f"{floor.mean:.2f}, from {floor.low:.2f} to {floor.high:.2f}")
    0.03, from 0.00 to 0.10
    """
    if not isinstance(draws, int) or draws < 1:
        raise ArgumentError(f"draws={draws!r}: give a whole number of draws, at least 1")
    if not isinstance(seed, int):
        raise ArgumentError(f"seed={seed!r}: give a whole number")
    confidence = confidence_of(check_probs(probs))  # (n,)
    w = weights_or_ones(weights, len(confidence))
    bin_of = bin_numbers(confidence, bins)
    generator = torch.Generator().manual_seed(seed)
    errors = torch.zeros(draws, dtype=torch.float64)
    for number in range(bins):
        own, mass = confidence[bin_of == number], w[bin_of == number]  # (m,)
        rows = max(1, NUMBERS_AT_A_TIME // max(1, len(own)))
        for start in range(0, draws, rows):
            part = errors[start : start + rows]  # a view
            right = torch.rand(len(part), len(own), generator=generator, dtype=torch.float64) < own
            part += (right.double() @ mass - own @ mass).abs()
    errors /= w.sum()
    low, high = errors.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return CalibrationFloor(errors.mean().item(), low, high)
