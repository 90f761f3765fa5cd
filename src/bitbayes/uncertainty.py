"""The parts of the uncertainty of a prediction: noise in the labels, and weights that are not known."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Uncertainty", "uncertainty_of_draws"]


class Uncertainty(NamedTuple):
    """The uncertainty of n predictions, in nats. The entropy is the sum of the next two.

    entropy: H[E p] (n,), all of the uncertainty.
    expected_entropy: E H[p] (n,), the part that stays if the weights are known: noise in the labels.
    mutual_information: E KL(p ‖ E p) (n,) ≥ 0, the part that comes from unknown weights.
    variance: Var p (n, k), or (n, 2) for one logit.
    """

    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    variance: Tensor


def uncertainty_of_draws(probabilities: Tensor) -> Uncertainty:
    """The uncertainty of draws p (s, n, k) of the probabilities, every expectation a mean over s."""
    mean = probabilities.mean(0)  # (n, k)
    floor = mean.clamp_min(torch.finfo(mean.dtype).tiny)
    # p log(p/p̄) − p + p̄: no term is negative. Where p is nearly p̄, as near the data, log1p keeps digits that
    # a difference of entropies has lost; elsewhere p itself may be lost in p − p̄.
    gap = probabilities - floor
    near = probabilities * (gap / floor).log1p()
    far = torch.xlogy(probabilities, probabilities / floor)
    divergence = torch.where(2 * gap.abs() < floor, near, far) - gap  # (s, n, k)
    return Uncertainty(
        entropy=torch.special.entr(mean).sum(1),
        expected_entropy=torch.special.entr(probabilities).sum(2).mean(0),
        mutual_information=divergence.sum(2).mean(0).clamp_min(0),
        variance=(probabilities - mean).square().mean(0),
    )
