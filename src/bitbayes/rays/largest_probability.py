"""The largest probability of any of k classes, if only ranges of the classes' scores are known.

Each predictive gives class i the probability e^sᵢ/Σₗ e^sₗ. The scores s depend on ratios z of a mean and a
deviation. If each z lies in [low, high], then pᵢ ≤ σ(highest sᵢ − log Σ_{l≠i} e^(lowest sₗ)).
"""

import torch
from torch import Tensor

from bitbayes.likelihoods.categorical import largest_softmax


def largest_pairwise_probability(low: Tensor, high: Tensor) -> Tensor:
    """Return max p with sᵢ = −log Σⱼ e^(−zᵢⱼ), which grows with each zᵢⱼ, for ranges of z (n, k, k) → (n,).

    >>> z = torch.tensor([[[0.0, 3.0], [-3.0, 0.0]]])
    >>> torch.allclose(largest_pairwise_probability(z, z), torch.tensor(3.0).sigmoid())
    True
    """
    return largest_softmax(-torch.logsumexp(-low, dim=2), -torch.logsumexp(-high, dim=2))


def largest_softmax_probability(high: Tensor) -> Tensor:
    """Return max p if sᵢ − sⱼ ≤ highᵢⱼ, (n, k, k) → (n,), with 0 on the diagonal: max 1/Σⱼ e^(−highᵢⱼ).

    >>> high = torch.tensor([[[0.0, 3.0], [1.0, 0.0]]])
    >>> torch.allclose(largest_softmax_probability(high), torch.tensor(3.0).sigmoid())
    True
    """
    return (-torch.logsumexp(-high, dim=2)).amax(1).exp()
