"""A multilayer perceptron, for the toy problems."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from bitbayes.errors import ArgumentError


class MLP(nn.Sequential):
    """Linear layers with ReLUs between them: (n, sizes[0]) → (n, sizes[-1]).

    Args:
        sizes: the widths of the layers, from input to output.
        batch_norm: whether a batch norm follows each hidden linear layer, before its ReLU.
        bias: whether the hidden linear layers have biases.
        last_bias: whether the last linear layer has a bias.

    >>> MLP((2, 20, 20, 1))
    MLP(
      (0): Linear(in_features=2, out_features=20, bias=True)
      (1): ReLU()
      (2): Linear(in_features=20, out_features=20, bias=True)
      (3): ReLU()
      (4): Linear(in_features=20, out_features=1, bias=True)
    )
    >>> sum(p.numel() for p in MLP((2, 20, 20, 1)).parameters())
    501
    """

    def __init__(
        self, sizes: Sequence[int], *, batch_norm: bool = False, bias: bool = True, last_bias: bool = True
    ) -> None:
        if len(sizes) < 2 or min(sizes) < 1:
            raise ArgumentError(f"sizes={tuple(sizes)}: give every width from input to output, as (2, 20, 1)")
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(sizes[:-1]):
            layers.append(nn.Linear(width_in, width_out, bias=bias))
            if batch_norm:
                layers.append(nn.BatchNorm1d(width_out))
            layers.append(nn.ReLU())
        layers.append(nn.Linear(sizes[-2], sizes[-1], bias=last_bias))
        super().__init__(*layers)
