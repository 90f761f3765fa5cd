"""The largest probability that k classes can have when all that is known of their scores is a range.

Each predictive gives class i the probability e^sᵢ/Σₗ e^sₗ with scores s that depend on ratios z of a mean and
a deviation. If z lies in [low, high], then pᵢ ≤ σ(highest sᵢ − log Σ_{l≠i} e^(lowest sₗ)).
"""

from __future__ import annotations

import torch
from torch import Tensor


def largest_probit_probability(low: Tensor, high: Tensor) -> Tensor:
    """sᵢ = zᵢ; ranges (n, k) → (n,). One logit, (n, 1), has the classes z and −z against 0.

    >>> largest_probit_probability(torch.tensor([[-2.0]]), torch.tensor([[1.0]])) == torch.tensor(2.0).sigmoid()
    tensor([True])
    """
    if low.shape[1] == 1:
        return torch.maximum(high, -low)[:, 0].sigmoid()
    return _largest_share(low, high)


def largest_pairwise_probability(low: Tensor, high: Tensor) -> Tensor:
    """sᵢ = −log Σⱼ e^(−zᵢⱼ), which grows with each z; ranges (n, k, k) → (n,).

    >>> z = torch.tensor([[[0.0, 3.0], [-3.0, 0.0]]])
    >>> torch.allclose(largest_pairwise_probability(z, z), torch.tensor(3.0).sigmoid())
    True
    """
    return _largest_share(-torch.logsumexp(-low, dim=2), -torch.logsumexp(-high, dim=2))


def _largest_share(low: Tensor, high: Tensor) -> Tensor:
    """Ranges of scores (n, k) → the largest probability (n,)."""
    k = low.shape[1]
    own = torch.eye(k, dtype=torch.bool, device=low.device)
    others = low[:, None, :].masked_fill(own, -torch.inf).logsumexp(2)  # (n, k)
    return (high - others).amax(1).sigmoid()
