"""Frequent directions: a few rows in place of many, with a bound on the loss.

The rows X (n, k) are vectors over classes, and only XᵀX matters. They are replaced by at most `rank` rows L:
0 ⪯ XᵀX − LᵀL ⪯ δ·diag(s), with weights s > 0 of the classes. Measured by s, a frequent class counts no
more than a rare one. (Liberty, 2013, arXiv 1206.0594.)
"""

import torch
from torch import Tensor

from bitbayes.structures.base import eigen


def compress(rows: Tensor, weights: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return L (rank, k), padded with zeros, and δ (). If X has at most this rank, L is exact and δ = 0.

    Every eigenvalue is lowered by the largest one that is left out. So the total loss, in one call or in
    many, is at least rank + 1 times δ, and δ is small if there is little to lose.

    Args:
        rows: X (n, k), in float64.
        weights: s (k,), not negative; 0 only where all rows are 0.
        rank: the largest number of rows of L.

    >>> rows = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 1.0]]).double()
    >>> kept, lost = compress(rows, torch.ones(2).double(), 1)
    >>> print(f"{float(lost):.0f} {kept.square().sum(0).tolist()}")
    5 [4.0, 0.0]
    """
    n, k = rows.shape
    if n <= rank:
        return torch.cat([rows, rows.new_zeros(rank - n, k)]), rows.new_zeros(())
    weighted = rows / _positive(weights).sqrt()
    values, vectors = eigen(weighted @ weighted.T)
    values, vectors = values.flip(0), vectors.flip(1)  # the largest first
    lost = values[rank]
    # An eigenvalue that should be 0 is about 1e-16 times the largest one by rounding.
    lost = torch.where(lost > n * torch.finfo(rows.dtype).eps * values[0], lost, 0)
    shares = ((values[:rank] - lost) / _positive(values[:rank])).clamp_min(0)
    return shares.sqrt()[:, None] * (vectors[:, :rank].T @ rows), lost


def _positive(values: Tensor) -> Tensor:
    return values.clamp_min(torch.finfo(values.dtype).tiny)
