"""The relative Mahalanobis distance (Ren et al. 2021), on the last features."""

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from bitbayes.baselines.detectors.mahalanobis import Mahalanobis


@dataclass(frozen=True)
class RelativeMahalanobis(Mahalanobis):
    """The score of `Mahalanobis` plus (φ − μ)ᵀ S⁺ (φ − μ), μ and S the mean and covariance of all features.

    Directions in which the data vary anyway do not count twice. With S⁺ = AAᵀ, A (d, r) is `whole`.
    """

    whole: Tensor

    title: ClassVar[str] = "Relative Mahalanobis"

    @classmethod
    def _fit(cls, features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Self:
        nearest = Mahalanobis._fit(features, labels, weight, bias)
        # All points as one class.
        every = Mahalanobis._fit(features, labels * 0, weight, bias)
        return cls(nearest.origin, nearest.whitening, nearest.centres, every.whitening)

    def _score(self, features: Tensor) -> Tensor:
        distance = ((features - self.origin) @ self.whole).square().sum(1)
        return super()._score(features) + distance
