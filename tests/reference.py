"""The reference: plain float64 computations with dense matrices, explicit inverses and loops over points.

Weights are W (k, D) with the bias as last column, flattened class by class; features φ̃ (n, D) end in the
bias's 1.
"""

import itertools
import math

import torch
from scipy import integrate, special
from torch import nn
from torch.func import jacrev
from torch.nn import functional

import bitbayes as bb

KAPPA = math.pi / 8
STRUCTURES = ("full", "kron", "diag", "isotropic")


# ---- cases


def network(k, bias=True, dtype=torch.float64, inputs=3, width=4):
    """A small network whose last layer is 'head'."""
    layers = {
        "hidden": nn.Linear(inputs, width),
        "activation": nn.Tanh(),
        "head": nn.Linear(width, k, bias=bias),
    }
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model.to(dtype)


def data(k, n=30, inputs=3, dtype=torch.float64):
    """Inputs (n, inputs) and labels (n,) of max(k, 2) classes, independent of the inputs."""
    return 2 * torch.randn(n, inputs, dtype=dtype), torch.arange(n) % max(k, 2)


def loader(x, y, batch=7):
    """Batches (x, y), the last one shorter."""
    return list(zip(torch.split(x, batch), torch.split(y, batch), strict=True))


def fitted(k=3, bias=True, dtype=torch.float64, n=30, model=None, **options):
    """A fitted Laplace, and the inputs and labels it was fitted to."""
    model = model or network(k, bias, dtype)
    x, y = data(k, n, dtype=dtype)
    return bb.Laplace(model, **options).fit(loader(x, y)), x, y


def head_weights(model):
    """W (k, D)."""
    head = model.head
    return (head.weight if head.bias is None else torch.cat([head.weight, head.bias[:, None]], 1)).detach()


def head_features(model, x):
    """φ̃ (n, D)."""
    with torch.no_grad():
        features = model.activation(model.hidden(x))
    return features if model.head.bias is None else torch.cat([features, torch.ones_like(x[:, :1])], 1)


# ---- curvature and posterior


def total_loss(logits, labels):
    """−Σₙ log p(yₙ | fₙ), logits (n, k)."""
    if logits.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits), reduction="sum")
    return functional.cross_entropy(logits, labels, reduction="sum")


def autograd_hessian(function):
    """The Hessian of a function in its first argument, reverse over reverse."""
    return jacrev(jacrev(function))


def hessian(weights, features, labels):
    """The Hessian of the summed loss in the weights, by autograd, (kD, kD)."""
    h = autograd_hessian(lambda w: total_loss(features @ w.T, labels))(weights)
    return h.reshape(weights.numel(), weights.numel())


def logit_hessians(logits, labels):
    """Λₙ, by autograd, (n, k, k)."""
    return torch.vmap(autograd_hessian(lambda f, y: total_loss(f[None], y[None])))(logits, labels)


def precision(structure, weights, features, labels, prior_variance):
    """H + I/σ₀² (kD, kD), with H as the structure approximates it."""
    full = hessian(weights, features, labels)
    if structure == "full":
        h = full
    elif structure == "diag":
        h = torch.diag(torch.diag(full))
    elif structure == "kron":
        outputs = logit_hessians(features @ weights.T, labels).sum(0)
        inputs = sum(torch.outer(phi, phi) for phi in features)
        h = torch.kron(outputs, inputs) / len(features)
    else:
        assert structure == "isotropic"
        h = torch.zeros_like(full)
    return h + torch.eye(len(h), dtype=h.dtype) / prior_variance


def covariance(structure, weights, features, labels, prior_variance):
    """Σ (kD, kD)."""
    return torch.linalg.inv(precision(structure, weights, features, labels, prior_variance))


def logits_covariance(sigma, features, k):
    """J Σ Jᵀ with J = I ⊗ φ̃ᵀ, point by point, (n, k, k)."""
    jacobians = [torch.kron(torch.eye(k, dtype=sigma.dtype), phi[None]) for phi in features]
    return torch.stack([j @ sigma @ j.T for j in jacobians])


def log_evidence(structure, weights, features, labels, prior_variance):
    """log p(D | W*) + log N(W* | 0, σ₀²I) + P/2 log 2π − ½ log det(H + τI)."""
    prior_variance = torch.as_tensor(prior_variance, dtype=torch.float64)
    log_det = torch.linalg.slogdet(precision(structure, weights, features, labels, prior_variance))[1]
    size = weights.numel()
    log_prior = -weights.square().sum() / (2 * prior_variance) - size / 2 * torch.log(
        2 * math.pi * prior_variance
    )
    log_likelihood = -total_loss(features @ weights.T, labels)
    return log_likelihood + log_prior + size / 2 * math.log(2 * math.pi) - log_det / 2


# ---- predictives, for one point: mean (k,), covariance (k, k)


def probit(mean, covariance):
    """Probabilities (k,); (2,) for one logit."""
    k = len(mean)
    if k == 1:
        p = special.expit(float(mean[0]) / math.sqrt(1 + KAPPA * float(covariance[0, 0])))
        return torch.tensor([1 - p, p], dtype=torch.float64)
    projection = torch.eye(k, dtype=torch.float64) - 1 / k
    m, c = projection @ mean, projection @ covariance @ projection
    z = [float(m[i]) / math.sqrt(1 + KAPPA * float(c[i, i])) for i in range(k)]
    return torch.softmax(torch.tensor(z, dtype=torch.float64), 0)


def pairwise(mean, covariance):
    """Probabilities (k,) from the probits of all pairs of logits."""
    k = len(mean)
    scores = []
    for i in range(k):
        total = 0.0
        for j in range(k):
            variance = float(covariance[i, i] + covariance[j, j] - 2 * covariance[i, j])
            total += math.exp(-float(mean[i] - mean[j]) / math.sqrt(1 + KAPPA * variance))
        scores.append(1 / total)
    return torch.tensor([score / sum(scores) for score in scores], dtype=torch.float64)


def meanfield(mean, covariance):
    """Probabilities (k,) with the mean variance of all pairs of logits for every class."""
    k = len(mean)
    pairs = [(i, j) for i in range(k) for j in range(k) if i != j]
    variance = sum(float(covariance[i, i] + covariance[j, j] - 2 * covariance[i, j]) for i, j in pairs)
    return torch.softmax(mean / math.sqrt(1 + KAPPA * variance / len(pairs)), 0)


def bridge(mean, covariance):
    """The mean of the Laplace bridge's Dirichlet, with the correction for large variance."""
    k = len(mean)
    projection = torch.eye(k, dtype=torch.float64) - 1 / k
    m, c = projection @ mean, projection @ covariance @ projection
    excess = max(1.0, float(torch.diag(c).mean()) / math.sqrt(k / 2))
    m, c = m / math.sqrt(excess), c / excess
    inverse = sum(math.exp(-float(m[j])) for j in range(k))
    alpha = [(1 - 2 / k + math.exp(float(m[i])) * inverse / k**2) / float(c[i, i]) for i in range(k)]
    return torch.tensor([a / sum(alpha) for a in alpha], dtype=torch.float64)


def sigmoid_expectation(mean, variance):
    """∫ σ(f) N(f | mean, variance) df by adaptive quadrature, cut where the sigmoid turns."""
    if variance == 0:
        return float(special.expit(mean))
    deviation = math.sqrt(variance)

    def integrand(t):
        return special.expit(mean + deviation * t) * math.exp(-t * t / 2) / math.sqrt(2 * math.pi)

    turn = -mean / deviation
    around = [turn + sign * width / deviation for sign in (-1, 1) for width in (0, 2, 8, 40)]
    cuts = sorted({-39.0, 39.0, *range(-10, 11, 2), *(cut for cut in around if abs(cut) < 39)})
    pieces = [
        integrate.quad(integrand, a, b, epsabs=1e-14, epsrel=1e-12, limit=200)[0]
        for a, b in itertools.pairwise(cuts)
        if b - a > 1e-13  # what is left out is less than that, and no rule has room in it
    ]
    return math.fsum(pieces)


# ---- the residual


def residual_deviations(train, correlated=False, at_zero=1.0):
    """The deviation (D,) of each column, by loops; with the floor where few points determine it.

    With correlations: the standard deviation, or if that is more √(Σ(x − mean)⁴/Σ(x − mean)²/30). Without:
    (mean of (x − mean)⁴)^¼. A column that is always c has |c|/64. At 0 it has `at_zero` times the lower
    median of those that vary, or `at_zero`.
    """
    train = train.double().flatten(1)
    floor = math.sqrt(float(train.var(0, correction=0).mean()))
    found = {}
    for number, column in enumerate(train.T):
        if column.min() < column.max():
            gaps = column - column.mean()
            squares, fourths = float((gaps**2).sum()), float((gaps**4).sum())
            own = (fourths / len(column)) ** 0.25
            if correlated:
                own = max(math.sqrt(squares / len(column)), math.sqrt(fourths / squares / 30))
            found[number] = own if squares**2 / fourths >= 10 else max(own, floor)
    typical = sorted(found.values())[(len(found) - 1) // 2] if found else 1.0
    constants = [abs(float(value)) / 64 or at_zero * typical for value in train[0]]
    return torch.tensor([found.get(i, each) for i, each in enumerate(constants)], dtype=torch.float64)


def residual_kernel(x, train):
    """1/D Σ |x̂|³/3 in float64, (n,), with the means and the deviations of the training data."""
    standard = (x.double().flatten(1) - train.double().flatten(1).mean(0)) / residual_deviations(train)
    return (standard.abs() ** 3 / 3).mean(1)


def residual_moments(train):
    """The second moments (d, d) in units of the deviations, and the share by (23) of Chen et al. (2010).

    What the square of a deviation is more than the variance is added to the variance of its column: 1.
    """
    train, n, d = train.double(), *train.shape
    deviations = residual_deviations(train, correlated=True)
    covariance = torch.zeros(d, d, dtype=torch.float64)
    for row in train - train.mean(0):
        covariance += torch.outer(row, row) / n
    for i, column in enumerate(train.T):
        if column.min() == column.max():
            covariance[i], covariance[:, i] = 0, 0
        covariance[i, i] += deviations[i] ** 2 - covariance[i, i]
    moments = covariance / torch.outer(deviations, deviations)
    trace, squared = float(moments.trace()), float((moments @ moments).trace())
    spread = (n + 1 - 2 / d) * (squared - trace**2 / d)
    share = min(1.0, max(1e-4, ((1 - 2 / d) * squared + trace**2) / spread)) if spread > 0 else 1.0
    return moments, share


def shrink(moments, share):
    mean = max(float(moments.trace()) / len(moments), 1e-6)
    return (1 - share) * moments + share * mean * torch.eye(len(moments), dtype=torch.float64)


def residual_correlations(train):
    return shrink(*residual_moments(train))


def residual_covariance(train, at_zero=1.0):
    """S (d, d), in the units of the columns."""
    deviations = residual_deviations(train, True, at_zero)
    return residual_correlations(train) * torch.outer(deviations, deviations)


def residual_distances(x, train, correlated, at_zero=1.0):
    """√((x − μ)ᵀ S⁻¹ (x − μ)/d), (n,), with S in the units of x; or the cube root of the kernel."""
    if not correlated:
        return residual_kernel(x, train) ** (1 / 3)
    gaps, moments = x.double() - train.double().mean(0), residual_covariance(train, at_zero)
    return torch.stack([(gap @ torch.linalg.solve(moments, gap) / len(gap)).sqrt() for gap in gaps])


def class_covariances(train, labels):
    """W and W + B of `class_distances`, (d, d) each, in the units of the columns."""
    train, deviations = train.double(), residual_deviations(train, correlated=True)
    moments, share = residual_moments(train)
    between = torch.zeros_like(moments)
    for label in sorted(set(labels.tolist())):
        own = train[labels == label]
        gap = (own.mean(0) - train.mean(0)) / deviations
        between += len(own) / len(train) * torch.outer(gap, gap)
    within = shrink(moments - between, share)
    units = torch.outer(deviations, deviations)
    return within * units, (within + between) * units


def class_distances(x, train, labels):
    """√(max(0, min over classes of (x − μ_c)ᵀW⁻¹(x − μ_c) − (x − μ)ᵀ(W + B)⁻¹(x − μ))/r), (n,), by loops.

    B = Σ p_c (μ_c − μ)(μ_c − μ)ᵀ, and W are the moments minus B, shrunk. r = min(classes − 1, d) for classes
    whose means differ in as many directions. Of one class alone all distances are 0.
    """
    x, mean, means = x.double(), train.double().mean(0), []
    within, total = class_covariances(train, labels)
    for label in sorted(set(labels.tolist())):
        means.append(train.double()[labels == label].mean(0))
    directions = min(len(means) - 1, train.shape[1])
    found = []
    for row in x:
        whole = (row - mean) @ torch.linalg.solve(total, row - mean)
        relative = min(float((row - m) @ torch.linalg.solve(within, row - m) - whole) for m in means)
        found.append(math.sqrt(max(0.0, relative) / directions) if directions else 0.0)
    return torch.tensor(found, dtype=torch.float64)
