"""The uncertainty of predictions, from a Gaussian over logits: a score to reject by, or its parts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes import predictive
from bitbayes.logits import LogitGaussian
from bitbayes.precision import without_autocast

__all__ = ["Uncertainty", "of_draws", "of_gaussian", "score"]


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


def score(gaussian: LogitGaussian) -> Tensor:
    """Return log Σᵢ exp zᵢ (n,), which is larger for points that are more like the data.

    zᵢ = m̃ᵢ/√(1 + π/8·c̃ᵢᵢ) are the logits of `probit`. For one logit z it is that of the two logits ±z/2.
    """
    z = predictive.predict(gaussian, "probit")  # (n, k)
    return (torch.cat([-z, z], dim=1) / 2 if z.shape[1] == 1 else z).logsumexp(1)


def of_gaussian(gaussian: LogitGaussian, samples: int, generator: torch.Generator | None) -> Uncertainty:
    """Return the uncertainty, estimated by draws of the logits. All points share the random numbers."""
    with without_autocast(gaussian.scale.device):
        return of_draws(predictive.drawn_probabilities(gaussian, samples, generator, shared=True))


def of_draws(probabilities: Tensor) -> Uncertainty:
    """Return the uncertainty, from draws p (s, n, k) of the probabilities. E is the mean over the draws."""
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
