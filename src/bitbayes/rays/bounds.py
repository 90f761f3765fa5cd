"""The theorems' bounds on confidence, from the weights' mean and the smallest eigenvalue of their covariance.

For any features, |μᵀφ̃| ≤ ‖μ‖‖φ̃‖ and φ̃ᵀΣφ̃ ≥ λ_min‖φ̃‖², so |z| ≤ ‖μ‖/√(κ λ_min(Σ)), κ = π/8, weights and bias
together. For k logits the same holds of every linear combination of them, with its own μ and Σ. If the
combination has coefficients c that sum to 0, the smallest eigenvalue of its covariance is at least ‖c‖²
times that of Σ, the common shift left out: 2λ_min for the difference of two logits, (1 − 1/k)λ_min for a
logit minus the mean of all.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.model import Head
from bitbayes.precision import precise
from bitbayes.predictive import KAPPA
from bitbayes.prior import Prior
from bitbayes.rays.largest_probability import largest_pairwise_probability, largest_probit_probability
from bitbayes.rays.limits import require_closed_form
from bitbayes.structures import WeightGaussian

METHODS_WITH_BOUND = ("probit", "pairwise", "meanfield", "quadrature")


class PriorLimits(NamedTuple):
    """Confidence (n,) as the prior variance goes to 0, and a bound on it (n,) as that goes to infinity."""

    certain: Tensor
    flat: Tensor


@torch.no_grad()
def bound(
    model: nn.Module, head: Head, gaussian: WeightGaussian, prior: Prior, temperature: float, method: str
) -> Tensor:
    """A confidence that no input exceeds, near or far: a number, in float64.

    One logit: σ(‖μ‖/√(κ λ_min(Σ))), or with "quadrature" Φ(‖μ‖/√λ_min(Σ)). k logits, "pairwise": every
    |zᵢⱼ| ≤ Zᵢⱼ = ‖μᵢ − μⱼ‖/√(2κ λ_min); "probit": |zᵢ| ≤ ‖μᵢ − μ̄‖/√(κ(1 − 1/k) λ_min); "meanfield", whose
    variance is that of a difference: |zᵢ| ≤ ‖μᵢ − μ̄‖/√(2κ λ_min). Each μ is divided by the temperature.
    """
    require_closed_form(method, METHODS_WITH_BOUND, "bound")
    weights = _weights(model, head)  # (k, D)
    smallest = 1 / gaussian.largest_precision(prior.precision(head.name, torch.float64)).to(weights)
    gaps = _gaps(weights[None] / temperature, method).norm(dim=-1)  # (1, k) or (1, k, k)
    return largest_confidence(gaps, squares(len(weights), method) * smallest.expand_as(gaps), 0, method)[0]


@torch.no_grad()
def prior_limits(features: Tensor, logits: Tensor, gaussian: WeightGaussian, method: str) -> PriorLimits:
    """The prior-variance propositions: confidence does not grow with σ₀², and lies between these two.

    σ₀² → 0: that of the network itself. σ₀² → ∞: at most σ(|f|/√(1 + κ‖φ̃‖²/λ_max(H))) for one logit, H the
    curvature; for k logits the same bound on each zᵢⱼ or zᵢ as in `bound`.

    Shapes: features φ̃ (n, D), with the bias's 1 if there is a bias; logits (n, k).

    >>> from bitbayes.structures import DiagGaussian
    >>> gaussian = DiagGaussian(torch.tensor([[4.0, 1.0]]))
    >>> limits = prior_limits(torch.tensor([[2.0, 1.0]]), torch.tensor([[3.0]]), gaussian, "probit")
    >>> print(f"{limits.certain.item():.3f} {limits.flat.item():.3f}")
    0.953 0.921
    """
    require_closed_form(method, ("probit", "pairwise", "meanfield"), "bound")
    features, logits = precise(features), precise(logits)
    gaps = _gaps(logits[..., None], method)[..., 0].abs()
    squared_norm = features.square().sum(1)
    # Where the curvature is 0, the variance goes to infinity with that of the prior.
    smallest = squared_norm / gaussian.largest_precision(0.0).to(squared_norm)
    variances = squares(logits.shape[1], method) * smallest.reshape(-1, *[1] * (gaps.dim() - 1))
    certain = logits[:, 0].abs().sigmoid() if logits.shape[1] == 1 else logits.softmax(1).amax(1)
    return PriorLimits(certain, largest_confidence(gaps, variances.expand_as(gaps), 1, method))


def bound_with_residual(found: Tensor, x: Tensor | None, outputs: int) -> Tensor:
    """The bound where there is a residual: 1/k, except at x = 0, whose ray is a point.

    Args:
        found: the bound without the residual: one number, or one for each row of x.
        x: the rays, if they were given.
        outputs: the number of logits.
    """
    moves = torch.ones_like(found, dtype=torch.bool)
    if x is not None and found.dim():
        moves = x.flatten(1).any(1).to(found.device)
    return torch.where(moves, 1 / max(2, outputs), found)


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
    """‖c‖² of the combinations of k logits whose variances a predictive looks at."""
    return 2 if method in ("pairwise", "meanfield") else 1 if k == 1 else 1 - 1 / k


def largest_confidence(gaps: Tensor, variances: Tensor, floor: float, method: str) -> Tensor:
    """From the largest |means| of combinations and their least variances, (n, k) or (n, k, k) → (n,)."""
    if method == "quadrature":
        probability: Tensor = torch.special.ndtr(gaps[:, 0] / variances[:, 0].sqrt())
        return probability
    z = gaps / (floor + KAPPA * variances).sqrt()
    largest = largest_pairwise_probability if method == "pairwise" else largest_probit_probability
    return largest(-z, z)
