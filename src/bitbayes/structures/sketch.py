"""Frequent directions: a few rows in the place of many, with a bound on what is lost.

The rows X (n, k) are vectors over classes, and XᵀX is what matters of them. At most `rank` rows L take their
place: 0 ⪯ XᵀX − LᵀL ⪯ δ·diag(s), with weights s > 0 of the classes. Measured by s, a frequent class counts no
more than a rare one. (Liberty, 2013, arXiv 1206.0594.)
"""

import torch
from torch import Tensor

from bitbayes.structures.base import eigen


def compress(rows: Tensor, weights: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """L (rank, k), padded with zeros, and δ (): exact, with δ = 0, where the rank of the rows suffices.

    Every eigenvalue loses as much as the largest one that is left out. So all that is lost, in one call or in
    many, is rank + 1 times δ or more, and δ is small if there is little to lose.

    Args:
        rows: X (n, k), in float64.
        weights: s (k,), not negative; 0 only where all rows are 0.
        rank: how many rows may be left.

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
    # Rounding leaves some 1e-16 of the largest where the truth is 0.
    lost = torch.where(lost > n * torch.finfo(rows.dtype).eps * values[0], lost, 0)
    shares = ((values[:rank] - lost) / _positive(values[:rank])).clamp_min(0)
    return shares.sqrt()[:, None] * (vectors[:, :rank].T @ rows), lost


def _positive(values: Tensor) -> Tensor:
    return values.clamp_min(torch.finfo(values.dtype).tiny)
