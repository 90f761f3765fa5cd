"""The distance to the k-th nearest training feature (Sun et al. 2022)."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from bitbayes.baselines.detectors.base import Detector, steps
from bitbayes.errors import DataError


@dataclass(frozen=True)
class KNN(Detector):
    """−‖u − u₍ₖ₎‖, with u = φ/‖φ‖ and u₍ₖ₎ the k-th nearest of the training data's `directions`, k = 50."""

    directions: Tensor

    title: ClassVar[str] = "KNN (k = 50)"
    k: ClassVar[int] = 50

    @property
    def width(self) -> int:
        return self.directions.shape[1]

    @classmethod
    def _fit(cls, features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Self:
        if len(features) < cls.k:
            raise DataError(f"there are {len(features)} training features: KNN needs {cls.k} or more")
        return cls(torch.cat([_directions(rows) for _, rows in steps(features)]))

    def _score(self, features: Tensor) -> Tensor:
        directions = _directions(features)
        squares = directions @ self.directions.T  # (n, N), as large as a step allows: no copies of it
        squares.mul_(-2).add_(directions.square().sum(1, keepdim=True)).add_(self.directions.square().sum(1))
        return -squares.topk(self.k, largest=False).values[:, -1].clamp_min(0).sqrt()


def _directions(features: Tensor) -> Tensor:
    """Return the rows scaled to length 1. A row of zeros, which ReLUs can produce, stays zero."""
    lengths: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return features / lengths.clamp_min(torch.finfo(features.dtype).tiny)
