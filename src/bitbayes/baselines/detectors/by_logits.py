"""Scores of the logits f = Wφ + b alone: the largest one, the energy, and the generalised entropy (GEN)."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from bitbayes.baselines.detectors.base import Detector


@dataclass(frozen=True)
class LogitDetector(Detector):
    """A detector without training data: `weight` W (k, d) and `bias` b (k,) are those of the last layer."""

    weight: Tensor
    bias: Tensor

    @property
    def width(self) -> int:
        return self.weight.shape[1]

    @classmethod
    def _fit(cls, features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Self:
        return cls(weight, bias)

    def logits(self, features: Tensor) -> Tensor:
        return features @ self.weight.T + self.bias


@dataclass(frozen=True)
class MaxLogit(LogitDetector):
    """maxᵢ fᵢ (Hendrycks et al. 2022)."""

    title: ClassVar[str] = "Maximum logit"

    def _score(self, features: Tensor) -> Tensor:
        return self.logits(features).amax(1)


@dataclass(frozen=True)
class Energy(LogitDetector):
    """log Σᵢ exp fᵢ, minus the energy at temperature 1 (Liu et al. 2020)."""

    title: ClassVar[str] = "Energy"

    def _score(self, features: Tensor) -> Tensor:
        return self.logits(features).logsumexp(1)


@dataclass(frozen=True)
class GEN(LogitDetector):
    """−Σᵢ pᵢ^γ (1 − pᵢ)^γ over the M = min(100, k) largest probabilities, γ = 0.1 (Liu et al. 2023)."""

    title: ClassVar[str] = "GEN"
    gamma: ClassVar[float] = 0.1
    largest: ClassVar[int] = 100

    def _score(self, features: Tensor) -> Tensor:
        log_p = self.logits(features).log_softmax(1).sort(1, descending=True).values
        others = log_p[:, 1:]  # each at most 1/2
        # 1 − p₁ as the sum of the others. As a difference it would be rounded to 0 for confident predictions,
        # although (1e-16)^γ = 0.03 is not negligible.
        log_rest = torch.cat([others.logsumexp(1, keepdim=True), (-others.exp()).log1p()], dim=1)
        return -(self.gamma * (log_p + log_rest))[:, : self.largest].exp().sum(1)
