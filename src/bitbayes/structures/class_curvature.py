"""The curvature over many classes, B ≈ diag(s) − ssᵀ/Σs − LᵀL, without a k × k matrix.

B = Σₙ(diag pₙ − pₙpₙᵀ) is the diagonal of Σₙ pₙ minus the second moments of p. A common shift of all logits
has no curvature in B, and none here, because the rows of L (r, k) sum to zero over the classes. What is
needed is the inverse on vectors that sum to zero, P(I + ρB)⁻¹P with P = I − 11ᵀ/k. It is a sum of squares:

    P diag(w) P + t tᵀ + FᵀF,   w = 1/(1 + ρs),   t = Pw/√Σ(1 − w),   F = √ρ K^(−½) L₀ diag(w) P,

with L₀ = L − m sᵀ, m = Lw/(sᵀw), and K = I − ΩΩᵀ + L₀ diag(w/s) L₀ᵀ, ΩΩᵀ = L diag(1/s) Lᵀ ⪯ I. No
difference cancels, for a prior of any width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.structures.base import eigen
from bitbayes.tensors import TensorBundle

# Rounds in which strengths and directions are adjusted to each other.
ROUNDS = 3
# Steps of a fixed-point iteration. Each multiplies the error by twice the share of the largest class.
MATCHING_STEPS = 50


class ClassInverse(NamedTuple):
    """P(I + ρB)⁻¹P = P diag(w) P + t tᵀ + FᵀF, and log det(I + ρB).

    own: w (k,). tilt: t (k,), which sums to zero. factor: F (r, k), whose rows sum to zero.
    """

    own: Tensor
    tilt: Tensor
    factor: Tensor
    log_determinant: Tensor

    def diagonal(self) -> Tensor:
        """Return the diagonal (k,); all numbers are positive."""
        k = len(self.own)
        mean = self.own.sum() / k**2
        return self.own * (1 - 2 / k) + mean + self.tilt.square() + self.factor.square().sum(0)

    def forms(self, combinations: Tensor) -> Tensor:
        """Return cᵀP(I + ρB)⁻¹Pc (m,) for combinations c (m, k) that sum to zero."""
        along = (combinations @ self.factor.T).square().sum(1)
        return combinations.square() @ self.own + (combinations @ self.tilt).square() + along

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Return n draws from N(0, (I + ρB)⁻¹), the common shift included, (n, k)."""
        k, r = len(self.own), len(self.factor)
        noise = torch.randn(n, k + r + 2, generator=generator, dtype=self.own.dtype, device=self.own.device)
        own = noise[:, :k] * self.own.sqrt()
        own = own - own.mean(1, keepdim=True) + noise[:, -1:] / math.sqrt(k)
        along: Tensor = noise[:, k : k + r] @ self.factor
        return along + own + noise[:, -2:-1] * self.tilt


@dataclass(frozen=True)
class ClassCurvature(TensorBundle):
    """`strengths` s (k,), `directions` L (r, k) and `slack` (r,) = 1 − L diag(1/s) Lᵀ, which is diagonal."""

    strengths: Tensor
    directions: Tensor
    slack: Tensor

    @classmethod
    def matched(cls, sums: Tensor, diagonal: Tensor, directions: Tensor) -> ClassCurvature:
        """Return the curvature with the diagonal of B, from Σₙ pₙ (k,), diag(B) (k,) and a sketch of moments.

        For a confident network Σₙ pₙpₙᵀ is almost diagonal, and a sketch of few rows cannot hold a diagonal.
        So s is lowered by what the sketch has lost, until the diagonal is that of B: the loss is only in
        other entries. B also stays at least its diagonal times the share that the sketch has lost.
        """
        strengths = sums
        moments = (sums - sums.square() / sums.sum() - diagonal).clamp_min(0)
        kept = directions.square().sum() / moments.sum().clamp_min(_tiny(sums))
        lost = (1 - kept).clamp(0, 1)
        for _ in range(ROUNDS):
            strengths = _with_diagonal(diagonal + directions.square().sum(0), sums)
            values, vectors = _correlations(directions, strengths - lost * diagonal)
            shares = values.clamp_max(1) / values.clamp_min(_tiny(values))
            directions = shares.sqrt()[:, None] * (vectors.T @ directions)
        values, vectors = _correlations(directions, strengths)
        return cls(strengths, vectors.T @ directions, (1 - values).clamp_min(0))

    def inverse(self, ratio: float) -> ClassInverse:
        """Return P(I + ρB)⁻¹P for one ρ ≥ 0, `ratio`."""
        s = self.strengths.clamp_min(_tiny(self.strengths))
        w = (1 + ratio * s).reciprocal()
        weight = s @ w
        own = self.directions - (self.directions @ w / weight)[:, None] * s  # L₀ (r, k)
        inner = (own * (w / s)) @ own.T + self.slack.diag()
        # Rounding can make eigenvalues near 0 negative.
        inner.diagonal().mul_(1 + 4 * len(inner) * torch.finfo(s.dtype).eps)
        inner.diagonal().add_(_tiny(s))
        root = torch.linalg.cholesky(inner)
        factor = own * w
        factor = factor - factor.mean(1, keepdim=True)
        factor = torch.linalg.solve_triangular(root, factor, upper=False) * math.sqrt(ratio)
        tilt = (w - w.mean()) / (ratio * weight + _tiny(s)).sqrt()
        determinant = (ratio * s).log1p().sum() + (weight / s.sum()).log() + 2 * root.diagonal().log().sum()
        return ClassInverse(w, tilt, factor, determinant)

    def largest_eigenvalue(self) -> float:
        """Return that of B, by bisection: by Sylvester a matrix of r + 1 rows counts those above a number."""
        s = self.strengths
        low, high = 0.0, float(s.max())
        rows = torch.cat([(s / s.sum().sqrt())[None], self.directions])  # B = diag(s) − rowsᵀ rows
        for _ in range(48):
            middle = (low + high) / 2
            gaps = s - middle
            gaps = torch.where(gaps == 0, torch.finfo(s.dtype).eps * high, gaps)
            inner = torch.eye(len(rows)).to(s) - (rows / gaps) @ rows.T
            above = int((gaps > 0).sum()) + int((torch.linalg.eigvalsh(inner) > 0).sum()) - len(rows)
            low, high = (middle, high) if above > 0 else (low, middle)
        return high


def _with_diagonal(diagonal: Tensor, sums: Tensor) -> Tensor:
    """Return s ≤ sums with s − s²/Σs = diagonal, by iteration; `sums` itself if nothing was lost."""
    found = sums
    for _ in range(MATCHING_STEPS):
        total = found.sum().clamp_min(_tiny(sums))
        found = torch.minimum(diagonal + found.square() / total, sums)
    return found


def _correlations(directions: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors of L diag(1/weights) Lᵀ."""
    weighted = directions / weights.clamp_min(_tiny(weights)).sqrt()
    return eigen(weighted @ weighted.T)


def _tiny(values: Tensor) -> float:
    return float(torch.finfo(values.dtype).tiny)
