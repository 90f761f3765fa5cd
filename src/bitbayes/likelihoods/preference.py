"""Preferences between two inputs, by their rewards r (Bradley and Terry): p(a ≻ b) = σ(r(a) − r(b)).

With r(x) = w·φ(x) + bias, the logit of a pair is w·ψ, ψ = φ(a) − φ(b), and all is that of one logit with the
features ψ: H = Σ p(1 − p) ψψᵀ. The bias cancels. So rewards are known up to a constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from bitbayes.likelihoods.bernoulli import Bernoulli
from bitbayes.logits import LogitGaussian


class Reward(NamedTuple):
    """Rewards, or differences of rewards, of n inputs; what `Laplace.reward` returns.

    mean: (n,).
    deviation: (n,), the standard deviation.
    """

    mean: Tensor
    deviation: Tensor

    @classmethod
    def joined(cls, gaussians: Iterable[LogitGaussian]) -> Reward:
        """The rewards of all points, from the Gaussians over their one logit."""
        parts = [(each.mean[:, 0], each.deviations()[:, 0]) for each in gaussians]
        return cls(*(torch.cat(column) for column in zip(*parts, strict=True)))


class Preference(Bernoulli):
    """The first of two inputs is preferred, or the second. Its probabilities are [p(b ≻ a), p(a ≻ b)]."""

    name = "preference"
    with_bounds: ClassVar[tuple[str, ...]] = ()
    has_drop_in = False  # a reward model is called with one input
    has_positions = False
    over_all_layers = False
    logits_in_a_margin = 2  # two rewards
    wanted_outputs = "a reward model has one"
    of_pairs = True

    def valid_labels(self, labels: Tensor, k: int) -> tuple[Tensor, Tensor | bool, str]:
        """1 and 0; integers, booleans and floats are accepted."""
        checked, ok, _ = super().valid_labels(labels, k)
        return (
            checked,
            ok,
            "expected 1 (the first is preferred) and 0 (the second is); leave ties out",
        )
