"""Curvature + prior → a Gaussian over the head's weights.

A posterior is what is left of a curvature once it is decomposed, which happens once; the prior variance is
an argument of each function, so that another one costs a matrix product and no decomposition. Each
structure has the same functions in the same order:

- `of(curvature, contrasts)`: decompose.
- `coordinates(features)`: what of the features (n, D) the covariance needs; no prior in it.
- `spread(coordinates, prior_variance)`: the covariance of the logits, in factors.
- `draw(n, prior_variance, generator)`: weights minus their mean, (n, k, D).
- `log_determinant(prior_variance)`: log det(H + τI), of all k·D weights.
- `to(device, dtype)`; `real()`: itself, unless it is a trace's.

`NetworkPosterior` is the Gaussian over the parameters of all layers.
"""

from typing import Protocol, Self

import torch
from torch import Tensor

from bitbayes.curvature import Curvature, DiagCurvature, FullCurvature, KronCurvature
from bitbayes.logits import CovarianceFactors
from bitbayes.posterior.all_layers import NetworkPosterior
from bitbayes.posterior.base import gram_root
from bitbayes.posterior.diag import DiagPosterior
from bitbayes.posterior.full import FullPosterior
from bitbayes.posterior.isotropic import IsotropicPosterior
from bitbayes.posterior.kron import KronPosterior, PaperKronPosterior


class Posterior(Protocol):
    """The functions above, as a type."""

    def coordinates(self, features: Tensor) -> Tensor: ...
    def spread(self, coordinates: Tensor, prior_variance: float) -> CovarianceFactors: ...
    def draw(self, n: int, prior_variance: float, generator: torch.Generator | None) -> Tensor: ...
    def log_determinant(self, prior_variance: Tensor) -> Tensor: ...
    def to(self, device: torch.device, dtype: torch.dtype) -> Self: ...
    def real(self) -> Self: ...


def posterior_of(curvature: Curvature, contrasts: Tensor, *, bias: bool, paper: bool) -> Posterior:
    """The posterior that belongs to a curvature; `paper`: its own formula where that differs."""
    match curvature:
        case FullCurvature():
            return FullPosterior.of(curvature, contrasts)
        case KronCurvature() if paper:
            return PaperKronPosterior.of(curvature, contrasts, bias)
        case KronCurvature():
            return KronPosterior.of(curvature, contrasts)
        case DiagCurvature():
            return DiagPosterior.of(curvature)
        case _:
            return IsotropicPosterior.of(curvature)


__all__ = [
    "DiagPosterior",
    "FullPosterior",
    "IsotropicPosterior",
    "KronPosterior",
    "NetworkPosterior",
    "PaperKronPosterior",
    "Posterior",
    "gram_root",
    "posterior_of",
]
