"""The theorems' bounds on confidence, from the weights' mean and the smallest eigenvalue of their covariance.

For any features, |μᵀφ̃| ≤ ‖μ‖‖φ̃‖ and φ̃ᵀΣφ̃ ≥ λ_min‖φ̃‖², so |z| ≤ ‖μ‖/√(κ λ_min(Σ)), κ = π/8, weights and bias
together. For k logits the same holds of every linear combination of them, with its own μ and Σ. If the
combination has coefficients c that sum to 0, the smallest eigenvalue of its covariance is at least ‖c‖²
times that of Σ, the common shift left out: 2λ_min for the difference of two logits, (1 − 1/k)λ_min for a
logit minus the mean of all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.model import Head
from bitbayes.posterior import (
    DiagPosterior,
    FullPosterior,
    KronPosterior,
    PaperKronPosterior,
    Posterior,
)
from bitbayes.precision import precise
from bitbayes.predictive import KAPPA
from bitbayes.rays.largest_probability import largest_pairwise_probability, largest_probit_probability
from bitbayes.rays.limit import require_closed_form

BOUNDED = ("probit", "pairwise", "quadrature")


class PriorLimits(NamedTuple):
    """Confidence (n,) as the prior variance goes to 0, and a bound on it (n,) as that goes to infinity."""

    certain: Tensor
    flat: Tensor


@torch.no_grad()
def bound(model: nn.Module, head: Head, posterior: Posterior, prior_variance: float, method: str) -> Tensor:
    """A confidence that no input exceeds, near or far: a number, in float64.

    One logit: σ(‖μ‖/√(κ λ_min(Σ))), or with "quadrature" Φ(‖μ‖/√λ_min(Σ)). k logits, "pairwise": every
    |zᵢⱼ| ≤ Zᵢⱼ = ‖μᵢ − μⱼ‖/√(2κ λ_min); "probit": |zᵢ| ≤ ‖μᵢ − μ̄‖/√(κ(1 − 1/k) λ_min).
    """
    require_closed_form(method, BOUNDED, "bound")
    weights = _weights(model, head)  # (k, D)
    smallest = 1 / largest_precision(posterior, prior_variance)
    gaps = _gaps(weights[None], method).norm(dim=-1)  # (1, k) or (1, k, k)
    return largest_confidence(gaps, squares(len(weights), method) * smallest.expand_as(gaps), 0, method)[0]


@torch.no_grad()
def prior_limits(features: Tensor, logits: Tensor, posterior: Posterior, method: str) -> PriorLimits:
    """The prior-variance propositions: confidence never rises with σ₀², and lies between these two.

    σ₀² → 0: that of the network itself. σ₀² → ∞: at most σ(|f|/√(1 + κ‖φ̃‖²/λ_max(H))) for one logit, H the
    curvature; for k logits the same bound on each zᵢⱼ or zᵢ as in `bound`.

    Shapes: features φ̃ (n, D), with the bias's 1 if there is a bias; logits (n, k).

    >>> from bitbayes.posterior import DiagPosterior
    >>> posterior = DiagPosterior(torch.tensor([[4.0, 1.0]]))
    >>> limits = prior_limits(torch.tensor([[2.0, 1.0]]), torch.tensor([[3.0]]), posterior, "probit")
    >>> print(f"{limits.certain.item():.3f} {limits.flat.item():.3f}")
    0.953 0.921
    """
    require_closed_form(method, ("probit", "pairwise"), "bound")
    features, logits = precise(features), precise(logits)
    gaps = _gaps(logits[..., None], method)[..., 0].abs()
    squared_norm = features.square().sum(1)
    # A curvature of 0 leaves the prior alone: as that widens, nothing stays known.
    smallest = squared_norm / largest_precision(posterior, math.inf)
    variances = squares(logits.shape[1], method) * smallest.reshape(-1, *[1] * (gaps.dim() - 1))
    certain = logits[:, 0].abs().sigmoid() if logits.shape[1] == 1 else logits.softmax(1).amax(1)
    return PriorLimits(certain, largest_confidence(gaps, variances.expand_as(gaps), 1, method))


def largest_precision(posterior: Posterior, prior_variance: float) -> Tensor:
    """λ_max(H) + τ = 1/λ_min(Σ), the common shift of k logits left out."""
    tau = 1 / prior_variance
    match posterior:
        case FullPosterior(values=values):
            return precise(values.amax()) + tau
        case KronPosterior(output_values=outputs, input_values=inputs):
            return precise(outputs.amax() * inputs.amax()) + tau
        case PaperKronPosterior(output_values=outputs, input_values=inputs, count=count):
            root, damping = count.sqrt(), math.sqrt(tau)
            weights = (outputs.amax() / root + damping) * (inputs.amax() / root + damping)
            return precise(torch.maximum(weights, outputs.amax() + tau) if posterior.bias else weights)
        case DiagPosterior(diagonal=diagonal):
            return precise(diagonal.amax()) + tau
        case _:
            return torch.tensor(tau, dtype=torch.float64)


def _weights(model: nn.Module, head: Head) -> Tensor:
    """μ (k, D), the bias last."""
    module = head.module(model)
    parts = [module.weight, module.bias[:, None]] if head.bias else [module.weight]
    return precise(torch.cat(parts, dim=1))


def _gaps(values: Tensor, method: str) -> Tensor:
    """Of values (n, k, …): the differences of all pairs, (n, k, k, …), or those to the mean, (n, k, …)."""
    if method == "pairwise":
        return values[:, :, None] - values[:, None, :]
    return values if values.shape[1] == 1 else values - values.mean(1, keepdim=True)


def squares(k: int, method: str) -> float:
    """‖c‖² of the combinations of k logits that a predictive looks at."""
    return 2 if method == "pairwise" else 1 if k == 1 else 1 - 1 / k


def largest_confidence(gaps: Tensor, variances: Tensor, floor: float, method: str) -> Tensor:
    """From the largest |means| of combinations and their least variances, (n, k) or (n, k, k) → (n,)."""
    if method == "quadrature":
        probability: Tensor = torch.special.ndtr(gaps[:, 0] / variances[:, 0].sqrt())
        return probability
    z = gaps / (floor + KAPPA * variances).sqrt()
    largest = largest_pairwise_probability if method == "pairwise" else largest_probit_probability
    return largest(-z, z)
