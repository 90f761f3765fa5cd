"""Bounds on confidence that hold for every input, from the mean and the covariance of the weights.

A predictive depends on the input through ratios z = cᵀm/√(1 + κ cᵀCc), κ = π/8, of some combinations c of the
k logits: m is their mean, C their covariance. For the last layer cᵀm = gᵀφ̃ and cᵀCc = φ̃ᵀSφ̃. Here φ̃ are the
features with the bias's 1, g = Σᵢ cᵢμᵢ, and S is the covariance of Σᵢ cᵢwᵢ: D numbers and a D × D matrix.

**Tight.** By Cauchy and Schwarz (gᵀφ̃)² = ((S^−½g)ᵀ(S^½φ̃))² ≤ gᵀS⁻¹g · φ̃ᵀSφ̃, so |z| ≤ √(gᵀS⁻¹g/κ). There is no
smaller bound on |z| that holds for all φ̃: z tends to it along t·S⁻¹g as t → ∞. For one logit
gᵀS⁻¹g = μᵀ(H + τI)μ.

**Theorem.** gᵀS⁻¹g ≤ ‖g‖²/λ_min(S), and λ_min(S) ≥ ‖c‖²λ_min(Σ), so |z| ≤ ‖g‖/(‖c‖√(κ λ_min(Σ))). This is the
paper's for one logit. It is never below the tight bound.

Along rays on which the features grow, the bias's 1 vanishes beside them, so a bound on these limits alone
could leave the bias out. Both forms include it. So they hold at every input, near or far, and where features
stop growing.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.closed_forms import KAPPA
from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import Likelihood, likelihood_for
from bitbayes.model import Head
from bitbayes.precision import to_float64
from bitbayes.rays.largest_probability import largest_pairwise_probability, largest_softmax_probability
from bitbayes.rays.limits import require_closed_form
from bitbayes.rays.ray_gaussian import ExactHead
from bitbayes.structures import WeightGaussian

TIGHT, THEOREM = FORMS = ("tight", "theorem")
# The tight form is used if the combinations, of k or D numbers each, are at most this many numbers.
MAX_COMBINATION_NUMBERS = 2**24

# whiten(c, g): vectors g (s, v, D) in coordinates whose squared norm is gᵀS⁻¹g, for s sets of combinations c
# (s, m, k); S is the sum of the covariances of a set's combinations.
Whiten = Callable[[Tensor, Tensor], Tensor]


class BoundRequest(NamedTuple):
    """Which bound is asked for: for which predictive of which likelihood, in which form.

    temperature: divides the mean logits. In regression it is the deviation of each output's noise, (k, 1).
    class_bias: (k,), added to them before that, as a part of the last layer's bias; None is 0.
    """

    likelihood: Likelihood
    method: str
    form: str = TIGHT
    temperature: float | Tensor = 1.0
    class_bias: Tensor | None = None

    def mean_weights(self, model: nn.Module, head: Head) -> Tensor:
        """μ (k, D), the bias last, with the class bias and divided by the temperature."""
        weights = head_weights(model, head)
        if self.class_bias is not None:
            if not head.bias:
                raise ArgumentError(
                    "a class bias is a part of the last layer's bias, and this one has none, so there is no "
                    "bound: use `limit` or `certify`, or tune without class_bias=True"
                )
            weights = torch.cat([weights[:, :-1], weights[:, -1:] + self.class_bias.to(weights)[:, None]], 1)
        return weights / self.temperature

    def check(self) -> None:
        """Raise if there is no such bound."""
        require_closed_form(self.method, self.likelihood.with_bounds, "bound")


class PriorLimits(NamedTuple):
    """Confidence (n,) as the prior variance goes to 0, and a bound on it (n,) as that goes to infinity."""

    certain: Tensor
    flat: Tensor


@torch.no_grad()
def bound(head: ExactHead, request: BoundRequest) -> Tensor:
    """Return a confidence that no input exceeds, near or far: (), in float64.

    With several labels for each input it is (k,), and in regression it bounds |mean|/deviation, (k,).
    μ has the class bias, and the temperature divides it. If there are too many combinations of logits for
    the tight form (see `affordable`), the result is the theorem's.
    """
    request.check()
    likelihood, method = request.likelihood, request.method
    weights = request.mean_weights(head.model, head.head)  # (k, D)
    gaussian = head.gaussian.to(weights.device, weights.dtype)
    if request.form == TIGHT and affordable(len(weights), weights.shape[1], method):
        return tight_bound(weights, partial(gaussian.whiten, tau=head.tau), likelihood, method)
    sizes = differences(weights[None], likelihood, method).norm(dim=-1)  # (1, k) or (1, k, k)
    smallest = squares(len(weights), likelihood, method) / gaussian.largest_precision(head.tau)
    return one_confidence(sizes[0] / smallest.sqrt(), likelihood, method)


def tight_bound(means: Tensor, whiten: Whiten, likelihood: Likelihood, method: str) -> Tensor:
    """Return the tight form, () or (k,), for weights μ, or for slopes, of each logit, (k, D).

    One logit, c = 1: "probit" is σ(|z|) ≤ σ(√(μᵀΣ⁻¹μ/κ)). "quadrature" is P(m + √v·t > l) for a normal t and
    a logistic l. Without l, which is symmetric, it would be larger: Φ(|m|/√v) ≤ Φ(√(μᵀΣ⁻¹μ)).

    Several labels: each one's logit by itself. Regression: |mean|/deviation ≤ √(μᵀΣ⁻¹μ) of each output.

    k logits. "pairwise" has a score for each class that grows with each of its zᵢⱼ, c = eᵢ − eⱼ. "probit" is
    the softmax of zᵢ with c = eᵢ − 1/k. So a class has its largest probability where its own z are largest,
    and those of all others smallest. "meanfield" divides all means by one deviation, whose square v̄ is
    2/(k − 1) times the sum of the variances of all eᵢ − 1/k. So it is the softmax of scores whose differences
    are (mᵢ − mⱼ)/√(1 + κv̄), which the same inequality bounds with S = the covariance that belongs to v̄. The
    probability of class i is at most 1/Σⱼ exp(−Zᵢⱼ) with Zᵢⱼ the bounds on these differences.

    The theorem has the same steps, with a larger bound on each |z|, and for "meanfield" it bounds each score
    by itself, where Zᵢ + Zⱼ ≥ Zᵢⱼ. So it is nowhere below this one.
    """
    k = len(means)
    each = combinations(k, likelihood, method).to(means)  # (m, k)
    vectors = each @ means  # (m, D)
    if method == "meanfield":
        white = whiten(math.sqrt(2 / (k - 1)) * each[None], vectors[None])  # (1, k, D)
        # Not by ‖a‖² + ‖b‖² − 2aᵀb, which cancels for classes that are close.
        ratios = torch.cdist(white, white, compute_mode="donot_use_mm_for_euclid_dist")
        return largest_softmax_probability(ratios / math.sqrt(KAPPA))[0]
    ratios = whiten(each[:, None], vectors[:, None])[:, 0].norm(dim=1)  # (m,)
    ratios = of_pairs(ratios[None], k)[0] if method == "pairwise" else ratios
    return one_confidence(ratios, likelihood, method)


def affordable(k: int, width: int, method: str) -> bool:
    """Return whether the tight form is affordable for k logits with `width` weights each."""
    count = k * (k - 1) // 2 if method == "pairwise" else k
    return count * max(k, width) <= MAX_COMBINATION_NUMBERS


@torch.no_grad()
def prior_limits(features: Tensor, logits: Tensor, gaussian: WeightGaussian, method: str) -> PriorLimits:
    """Return the two limits of the prior-variance propositions: confidence does not grow with σ₀².

    σ₀² → 0: that of the network itself. σ₀² → ∞: at most σ(|f|/√(1 + κ‖φ̃‖²/λ_max(H))) for one logit, H the
    curvature; for k logits the same bound on each zᵢⱼ or zᵢ as in the theorem's form of `bound`.

    Shapes: features φ̃ (n, D), with the bias's 1 if there is a bias; logits (n, k).

    >>> from bitbayes.structures import DiagGaussian
    >>> gaussian = DiagGaussian(torch.tensor([[4.0, 1.0]]))
    >>> limits = prior_limits(torch.tensor([[2.0, 1.0]]), torch.tensor([[3.0]]), gaussian, "probit")
    >>> print(f"{limits.certain.item():.3f} {limits.flat.item():.3f}")
    0.953 0.921
    """
    require_closed_form(method, ("probit", "pairwise", "meanfield"), "bound")
    likelihood = likelihood_for(logits.shape[1])
    features, logits = to_float64(features), to_float64(logits)
    gaps = differences(logits[..., None], likelihood, method)[..., 0].abs()
    squared_norm = features.square().sum(1)
    # Where the curvature is 0, the variance goes to infinity with that of the prior.
    smallest = squared_norm / gaussian.largest_precision(0.0).to(squared_norm)
    variances = squares(logits.shape[1], likelihood, method) * smallest.reshape(-1, *[1] * (gaps.dim() - 1))
    certain = likelihood.probabilities(logits).amax(1)
    flat = _largest_probability(gaps / (1 + KAPPA * variances).sqrt(), likelihood, method)
    return PriorLimits(certain, flat)


def bound_with_residual(
    found: Tensor, x: Tensor | None, far_confidence: float, *, for_each_ray: bool
) -> Tensor:
    """Return the bound with a residual: 1/k, except at x = 0, whose ray is a point.

    Args:
        found: the bound without the residual: () or (k,), or (n,) or (n, k) for the rows of x.
        x: the rays, if they were given. One bound for all rows is 1/k only if no row is 0.
        far_confidence: 1/k.
        for_each_ray: whether `found` has a row for each row of x.
    """
    if x is None:
        return torch.full_like(found, far_confidence)
    moves = x.reshape(len(x), -1).any(1).to(found.device)
    moves = moves.reshape(-1, *[1] * (found.dim() - 1)) if for_each_ray else moves.all()
    return torch.where(moves, far_confidence, found)


def head_weights(model: nn.Module, head: Head) -> Tensor:
    """μ (k, D), the bias last."""
    return to_float64(head.weights(model))


def combinations(k: int, likelihood: Likelihood, method: str) -> Tensor:
    """Return the combinations of k logits that a predictive depends on, (m, k): of c and −c only one."""
    one = torch.eye(k, dtype=torch.float64)
    if method == "pairwise":
        first, second = torch.triu_indices(k, k, 1)
        return one[first] - one[second]
    return likelihood.centre(one)


def of_pairs(values: Tensor, k: int) -> Tensor:
    """Return the values of all pairs, (n, m), as symmetric matrices (n, k, k) with 0 on the diagonal."""
    first, second = torch.triu_indices(k, k, 1)
    square = values.new_zeros(len(values), k, k)
    square[:, first, second] = square[:, second, first] = values
    return square


def squares(k: int, likelihood: Likelihood, method: str) -> float:
    """Return ‖c‖² of the combinations c of k logits whose variances a predictive depends on."""
    if method in ("pairwise", "meanfield"):
        return 2
    return float(likelihood.centre(torch.eye(k, dtype=torch.float64))[0].square().sum())


def one_confidence(ratios: Tensor, likelihood: Likelihood, method: str) -> Tensor:
    """Return the largest confidence, (), for ratios (k,) or (k, k); (k,) with a decision for each output."""
    if likelihood.one_label:
        return largest_confidence(ratios[None], likelihood, method)[0]
    return largest_confidence(ratios[:, None], likelihood, method)


def largest_confidence(ratios: Tensor, likelihood: Likelihood, method: str) -> Tensor:
    """Return the largest confidence (n,) for the largest |mean|/deviation of each combination of logits.

    Shapes: ratios (n, k), or (n, k, k) for pairs.
    """
    if method == "quadrature":
        probability: Tensor = torch.special.ndtr(ratios[:, 0])
        return probability
    return _largest_probability(ratios / math.sqrt(likelihood.kappa), likelihood, method)


def _largest_probability(z: Tensor, likelihood: Likelihood, method: str) -> Tensor:
    """Return the largest probability (n,) if each ratio lies in [−z, z]; z is (n, k) or (n, k, k)."""
    if method == "pairwise":
        return largest_pairwise_probability(-z, z)
    return likelihood.largest_probability(-z, z)


def differences(values: Tensor, likelihood: Likelihood, method: str) -> Tensor:
    """Return the differences of all pairs (n, k, k, …) of values (n, k, …), or to the mean (n, k, …)."""
    if method == "pairwise":
        return values[:, :, None] - values[:, None, :]
    return likelihood.centre(values)


def round_up(value: float, step: float) -> float:
    """Round up to a multiple of the step, to print a bound: rounded down, it would not hold.

    A value that differs from a multiple by floating-point rounding only is not raised.

    >>> f"{round_up(75.042, 0.1):.1f}", f"{round_up(75.0, 0.1):.1f}"
    ('75.1', '75.0')
    """
    return math.ceil(value / step - 1e-6) * step
