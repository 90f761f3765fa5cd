"""A Gaussian over logits → drop-in logits, whose softmax (one logit: sigmoid) is the averaged prediction.

∫ softmax(f) N(f | m, C) df has no closed form. These functions approximate it (probit, pairwise, mean_field,
bridge) or, for one logit or several labels, integrate it (quadrature). The result does not depend on a common
shift of all logits of a softmax. κ = π/8 throughout. Everything is computed in units of `scale` (see
`LogitGaussian`), so that a limit far from the data is reached and not inf/inf. Each likelihood lists its
closed forms by name.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from bitbayes.logits import LogitGaussian, centred

KAPPA = math.pi / 8
# Up to this many classes `pairwise` computes all pairs at once, and "auto" chooses it.
FEW_CLASSES = 64


def probit(gaussian: LogitGaussian) -> Tensor:
    """One logit, or each of several on its own: z = m/√(1 + κv), the paper's."""
    variances = gaussian.scaled_variances()
    return gaussian.scaled_mean * (gaussian.floor[:, None] + KAPPA * variances).rsqrt()


def centred_probit(gaussian: LogitGaussian) -> Tensor:
    """k logits: m̃ᵢ/√(1 + κc̃ᵢᵢ), with m̃ = Pm and c̃ = PCP.

    P = I − 11ᵀ/k removes the common shift before the diagonal is taken.
    """
    mean, variances = gaussian.scaled_centred()
    return mean * (gaussian.floor[:, None] + KAPPA * variances).rsqrt()


def pairwise(gaussian: LogitGaussian) -> Tensor:
    """pᵢ ∝ 1 / Σⱼ exp(−zᵢⱼ), zᵢⱼ = (mᵢ − mⱼ)/√(1 + κ Var(fᵢ − fⱼ)); returns log p.

    It depends on differences of logits alone. With k = 2 it is the paper's z(x) for the difference.
    """
    k = gaussian.scaled_mean.shape[1]
    # A sum of k exponentials below this stays finite, at half the cost of a logsumexp. The price: ratios of
    # probabilities are cut off at e^85 (float32) or e^700 (float64), and beyond that the gradient is 0.
    largest = math.log(torch.finfo(gaussian.scaled_mean.dtype).max) - math.log(k) - 1
    factor, traced = gaussian.factors.factor, torch.compiler.is_compiling()
    # In an exported graph, a factor for each point may be as wide as the Hessian, and so would all gaps be.
    wide = traced and factor is not None and factor.dim() == 3
    if k <= FEW_CLASSES and not wide:
        totals = _few_pairs(gaussian, largest)
    else:
        totals = (_pairs_in_blocks if traced else _many_pairs)(gaussian, largest)
    return totals.log().neg().log_softmax(1)


def _few_pairs(gaussian: LogitGaussian, largest: float) -> Tensor:
    """Σⱼ exp(−zᵢⱼ), (n, k), from each pair i < j once: tuning spends its time on these exponentials."""
    mean = gaussian.scaled_mean
    pairs = _pairs if _may_be_cached(mean) else _pairs.__wrapped__
    first, second, ahead, behind, gaps = pairs(mean.shape[1], mean.dtype, mean.device)
    spread = torch.add(gaussian.floor[:, None], gaussian.scaled_pair_variances(first, second), alpha=KAPPA)
    z = (mean @ gaps * spread.rsqrt()).clamp(-largest, largest)  # (n, pairs)
    # Not the reciprocal of exp(z): its derivative has the square, which overflows from half of `largest` on.
    return 1 + torch.addmm(z.exp() @ behind, z.neg().exp(), ahead)


def _may_be_cached(like: Tensor) -> bool:
    """Whether tensors made now, like this one, are real, and not part of a graph that is being recorded."""
    capturing = like.is_cuda and torch.cuda.is_current_stream_capturing()
    return type(like) is Tensor and not capturing and not torch.compiler.is_compiling()


@lru_cache(maxsize=8)
def _pairs(k: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """The classes i and j of all pairs i < j, their rows of the identity (pairs, k), and the gaps of these.

    They are cached, because a GPU takes as many kernels to make them as to use them.
    """
    with torch.inference_mode(False):  # what is cached may be differentiated through later
        identity = torch.eye(k, dtype=dtype, device=device)
        first, second = torch.triu_indices(k, k, 1, device=device)
        ahead, behind = identity[first], identity[second]
        made = first, second, ahead, behind, (ahead - behind).T
    if device.type == "cuda":  # other streams will use them too, and would not wait
        torch.cuda.current_stream(device).synchronize()
    return made


def _many_pairs(gaussian: LogitGaussian, largest: float) -> Tensor:
    """Σⱼ exp(−zᵢⱼ), (n, k), class by class, so that memory stays at n·k numbers."""
    mean, floor = gaussian.scaled_mean, gaussian.floor[:, None]
    totals = torch.ones_like(mean)
    for i in range(mean.shape[1] - 1):
        this, rest = slice(i, i + 1), slice(i + 1, None)
        spread = torch.add(floor, gaussian.scaled_pair_variances(this, rest), alpha=KAPPA)
        z = ((mean[:, this] - mean[:, rest]) * spread.rsqrt()).clamp(-largest, largest)  # (n, k − i − 1)
        totals[:, this].add_(z.neg().exp().sum(1, keepdim=True))
        totals[:, rest].add_(z.exp())
    return totals


def _pairs_in_blocks(gaussian: LogitGaussian, largest: float) -> Tensor:
    """Σⱼ exp(−zᵢⱼ), (n, k), for an exported graph: few, large operations, because it records each."""
    mean, floor = gaussian.scaled_mean, gaussian.floor[:, None, None]
    k = mean.shape[1]
    totals = []
    for start in range(0, k, FEW_CLASSES):
        these = slice(start, start + FEW_CLASSES)
        variances = gaussian.scaled_block_variances(these, slice(None))
        z = (mean[:, these, None] - mean[:, None, :]) * (floor + KAPPA * variances).rsqrt()
        totals.append(z.clamp(-largest, largest).neg().exp().sum(2))  # a class with itself: exp(0)
    return torch.cat(totals, dim=1)


def mean_field(gaussian: LogitGaussian) -> Tensor:
    """m̃ᵢ/√(1 + κ v̄), with one variance for all classes: v̄, the mean of Var(fᵢ − fⱼ) over all pairs.

    The class of the largest mean keeps the largest probability, whatever the covariance. It costs no more
    than the logits themselves, for any number of classes. With k = 2 it is the paper's z(x) for the
    difference, as `pairwise` is. (Lu, Ie and Sha, 2020, arXiv 2006.07584, use one variance for all classes
    too.)
    """
    variance = gaussian.floor + KAPPA * gaussian.scaled_mean_pair_variance()  # (n,)
    return centred(gaussian.scaled_mean) * variance.rsqrt()[:, None]


def bridge(gaussian: LogitGaussian) -> Tensor:
    """The Laplace bridge: the mean of the Dirichlet with αᵢ = (1 − 2/k + e^mᵢ Σⱼ e^−mⱼ / k²) / cᵢᵢ; log p.

    For centred m and C. Far from the data the match breaks down, since no Dirichlet is as wide as a wide
    Gaussian; so where the mean variance v̄ exceeds √(k/2), m is divided by √(v̄/√(k/2)) and C by its square.
    """
    mean, variances = gaussian.scaled_centred()  # (n, k)
    k = mean.shape[1]
    excess = variances.mean(1) / math.sqrt(k / 2)  # v̄/√(k/2), in units of scale²
    mean = mean * torch.maximum(gaussian.floor, excess).rsqrt()[:, None]
    # Where it overflows (a temperature of 1e-30), the ratio would be inf − inf.
    largest = torch.finfo(mean.dtype).max / 4
    mean = mean.clamp(-largest, largest)
    ratio = mean + torch.logsumexp(-mean, dim=1, keepdim=True) - 2 * math.log(k)
    if k > 2:
        ratio = torch.logaddexp(ratio, ratio.new_full((), math.log(1 - 2 / k)))
    # A common factor of the variances does not change the mean, so no variance underflows here.
    relative = variances / variances.amax(1, keepdim=True).clamp_min(torch.finfo(variances.dtype).tiny)
    return (ratio - relative.clamp_min(torch.finfo(variances.dtype).tiny).log()).log_softmax(1)


def quadrature(gaussian: LogitGaussian) -> Tensor:
    """One logit, or each of several on its own: log p/(1 − p) with p = ∫ σ(f) N(f | m, v) df.

    To 1e-10 in float64, by the trapezoidal rule. v ≤ 1: over the Gaussian, Σ σ(m + √v t) φ(t). v > 1: over
    the logistic, since σ(f) = P(f > l) for a logistic l: Σ σ'(l) Φ((m − l)/√v). Both integrands are analytic
    in a strip about the real line, so the rule's error falls like exp(−2π·width/step): below 1e-13 here.
    """
    # The side of the smaller probability, (n, k). Not by `sign` and `abs`: their derivatives at 0 are wrong.
    side = torch.where(gaussian.scaled_mean < 0, -1.0, 1.0).to(gaussian.scaled_mean)
    mean, floor = -gaussian.scaled_mean * side, gaussian.floor[:, None]
    variance = gaussian.scaled_variances()
    # The floor avoids 0/0 below, and in the gradient.
    deviation = variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
    step = 0.5

    t = torch.arange(-9, 9 + step, step, dtype=mean.dtype, device=mean.device)
    density = torch.exp(-t.square() / 2) * (step / math.sqrt(2 * math.pi))
    logits = (mean[..., None] + deviation[..., None] * t) * gaussian.scale[:, None, None]  # (n, k, knots)
    narrow = (logits.sigmoid() * density).sum(2)

    knots = torch.arange(-40, 40 + step, step, dtype=mean.dtype, device=mean.device)
    logistic = knots.sigmoid() * (-knots).sigmoid() * step
    quantiles = (mean[..., None] - knots * floor.sqrt()[..., None]) / deviation[..., None]
    wide = (logistic * torch.special.ndtr(quantiles)).sum(2)

    small = torch.where(variance <= floor, narrow, wide)
    return (torch.log1p(-small) - safe_log(small)) * side


def safe_log(probability: Tensor) -> Tensor:
    """The logarithm, finite also where a sample mean is 0."""
    return probability.clamp_min(torch.finfo(probability.dtype).tiny).log()
