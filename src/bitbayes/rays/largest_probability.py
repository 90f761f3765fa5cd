"""The largest probability of any of k classes, if only ranges of the classes' scores are known.

Each predictive gives class i the probability e^sᵢ/Σₗ e^sₗ. The scores s depend on ratios z of a mean and a
deviation. If each z lies in [low, high], then pᵢ ≤ σ(highest sᵢ − log Σ_{l≠i} e^(lowest sₗ)).
"""

import torch
from torch import Tensor


def largest_probit_probability(low: Tensor, high: Tensor) -> Tensor:
    """Return max p with sᵢ = zᵢ, for ranges of z (n, k) → (n,). One logit (n, 1) has the two scores z and 0.

    >>> low, high = torch.tensor([[-2.0]]), torch.tensor([[1.0]])
    >>> largest_probit_probability(low, high) == torch.tensor(2.0).sigmoid()
    tensor([True])
    """
    if low.shape[1] == 1:
        return torch.maximum(high, -low)[:, 0].sigmoid()
    return _largest_probability(low, high)


def largest_pairwise_probability(low: Tensor, high: Tensor) -> Tensor:
    """Return max p with sᵢ = −log Σⱼ e^(−zᵢⱼ), which grows with each zᵢⱼ, for ranges of z (n, k, k) → (n,).

    >>> z = torch.tensor([[[0.0, 3.0], [-3.0, 0.0]]])
    >>> torch.allclose(largest_pairwise_probability(z, z), torch.tensor(3.0).sigmoid())
    True
    """
    return _largest_probability(-torch.logsumexp(-low, dim=2), -torch.logsumexp(-high, dim=2))


def largest_softmax_probability(high: Tensor) -> Tensor:
    """Return max p if sᵢ − sⱼ ≤ highᵢⱼ, (n, k, k) → (n,), with 0 on the diagonal: max 1/Σⱼ e^(−highᵢⱼ).

    >>> high = torch.tensor([[[0.0, 3.0], [1.0, 0.0]]])
    >>> torch.allclose(largest_softmax_probability(high), torch.tensor(3.0).sigmoid())
    True
    """
    return (-torch.logsumexp(-high, dim=2)).amax(1).exp()


def _largest_probability(low: Tensor, high: Tensor) -> Tensor:
    """Return max p for ranges of scores (n, k) → (n,)."""
    # Sums over the classes before and behind each class: they need no more memory than the scores.
    edge = torch.full_like(low[:, :1], -torch.inf)
    before = torch.cat([edge, low.logcumsumexp(1)[:, :-1]], dim=1)
    behind = torch.cat([low.flip(1).logcumsumexp(1).flip(1)[:, 1:], edge], dim=1)
    others = torch.logaddexp(before, behind)  # (n, k)
    return (high - others).amax(1).sigmoid()
