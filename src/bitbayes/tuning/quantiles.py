"""Medians, quantiles and variances in which a point with the weight w counts w times.

With whole weights they are those of rows that are repeated. Without weights they are PyTorch's own.
"""

import torch
from torch import Tensor


def median(values: Tensor, weights: Tensor | None) -> Tensor:
    """The smallest value up to which half of the weight lies, for values (n,), or (n, c): (), or (c,).

    >>> median(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([5.0, 1.0, 1.0]))
    tensor(3.)
    """
    if weights is None:
        return values.median(0).values
    values, ends = _sorted(values, weights)
    places = (ends < ends[-1:] / 2).sum(0)
    return values.gather(0, places[None])[0]


def quantile(values: Tensor, share: float, weights: Tensor | None) -> Tensor:
    """The quantile, linear between values, for values (n,), or (n, c): (), or (c,).

    Value i lies at all places from w₁ + … + wᵢ₋₁ to w₁ + … + wᵢ − u, in ascending order, and the quantile at
    `share` of the last place. u is 1, or the smallest weight if that is less.

    >>> quantile(torch.tensor([1.0, 2.0]), 0.5, torch.tensor([1.0, 3.0]))  # of 1, 2, 2, 2
    tensor(2.)
    """
    if weights is None:
        return values.quantile(share, dim=0)
    weights = weights / weights.min().clamp_max(1)
    values, ends = _sorted(values, weights)
    place = share * (ends[-1:] - 1)
    last = (ends <= place).sum(0, keepdim=True).clamp_max(len(values) - 1)  # the value that reaches furthest
    following = (last + 1).clamp_max(len(values) - 1)
    low, high, end = (each.gather(0, at) for each, at in ((values, last), (values, following), (ends, last)))
    return torch.lerp(low, high, (place - (end - 1)).clamp(0, 1))[0]


def variance(values: Tensor, weights: Tensor | None) -> Tensor:
    """Σ w(v − m)²/Σ w with m = Σ wv/Σ w, for values (n,), or (n, c): (), or (c,).

    >>> variance(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0]))  # of 1, 1, 1, 5
    tensor(3.)
    """
    if weights is None:
        return values.var(0, correction=0)
    shares = weights.to(values) / weights.sum().to(values)
    return shares @ (values - shares @ values).square()


def _sorted(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The values in ascending order, and the sum of weights up to each of them; of their shape."""
    values, order = values.sort(dim=0)
    return values, weights.to(values)[order].cumsum(0)
