"""Σ = (H + τI)⁻¹ with the exact Hessian, by its eigenvectors; the common shift has Σ = I/τ."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.curvature import FullCurvature
from bitbayes.logits import CovarianceFactors
from bitbayes.posterior.base import Tensors, eigen, gaussian_noise, gram_root
from bitbayes.precision import precise


@dataclass(frozen=True)
class FullPosterior(Tensors):
    """`values` (r,) and `vectors` (c, D, r) of H over contrasts, r = c·D; `contrasts` (k, c)."""

    values: Tensor
    vectors: Tensor
    contrasts: Tensor

    @classmethod
    def of(cls, curvature: FullCurvature, contrasts: Tensor) -> FullPosterior:
        values, vectors = eigen(curvature.hessian)
        c = contrasts.shape[1]
        return cls(values, vectors.reshape(c, -1, len(values)), contrasts.to(vectors))

    def coordinates(self, features: Tensor) -> Tensor:
        """The features themselves, (n, D): their r·c coordinates would be k times the size of a network's."""
        return features

    def spread(self, coordinates: Tensor, prior_variance: float) -> CovarianceFactors:
        scaled = self.vectors * (self.values + 1 / prior_variance).rsqrt()  # (c, D, r)
        shift = _shift(coordinates, self.contrasts, prior_variance)
        c = self.contrasts.shape[1]
        if c == 1:
            deviation = coordinates @ scaled[0]  # (n, r)
            return CovarianceFactors(deviation.square().sum(1, keepdim=True), self.contrasts, shift)
        # In float64, so that forming the small Gram matrix loses nothing that float32 predictions could show.
        roots = precise(torch.einsum("nd,cdr->ncr", coordinates, scaled))
        factor = self.contrasts @ gram_root(roots @ roots.mT, 4 * c * torch.finfo(roots.dtype).eps).to(
            coordinates
        )  # (n, k, c)
        return CovarianceFactors(torch.ones_like(factor[:, 0]), factor, shift)

    def draw(self, n: int, prior_variance: float, generator: torch.Generator | None) -> Tensor:
        k, c = self.contrasts.shape
        noise = gaussian_noise(self.values, n, len(self.values), generator=generator)
        noise = noise * (self.values + 1 / prior_variance).rsqrt()
        weights = torch.einsum("nr,cdr,kc->nkd", noise, self.vectors, self.contrasts)
        if k == c:
            return weights
        # The common shift: the same draw, from the prior, for every class.
        common = gaussian_noise(self.values, n, 1, weights.shape[2], generator=generator)
        return weights + common * math.sqrt(prior_variance / k)

    def log_determinant(self, prior_variance: Tensor) -> Tensor:
        k, c = self.contrasts.shape
        shift = (k - c) * self.vectors.shape[1]
        return (self.values + 1 / prior_variance).log().sum() - shift * prior_variance.log()


def _shift(features: Tensor, contrasts: Tensor, prior_variance: float) -> Tensor:
    """The variance of a common shift, (n,): ‖φ̃‖²σ₀²/k in each logit, or 0 where there is none (one logit)."""
    k, c = contrasts.shape
    return features.square().sum(1) * (prior_variance * (k - c) / k)
