"""Networks and Laplace approximations for rays, and plain evaluation along rays."""

from dataclasses import replace

import torch
from torch import nn
from torch.func import jacrev
from torch.nn import functional

import bitbayes as bb
from bitbayes.model import find_head, forward, private_copy
from bitbayes.rays import final_region
from bitbayes.toys import MLP
from reference import KAPPA, logit_hessians


class Residual(nn.Module):
    """Convolutions, a batch norm, a residual sum with an in-place ReLU, max and average pooling."""

    def __init__(self, k):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.block = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(16, k)

    def forward(self, x):
        x = functional.relu(self.norm(self.stem(x)), inplace=True)
        x = functional.max_pool2d(x, 2)
        x = functional.relu(x + self.block(x), inplace=True)
        return self.head(functional.adaptive_avg_pool2d(x, 2).flatten(1))


def convnet(k):
    """A ConvNet with batch norm and max pooling."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 2), nn.LeakyReLU(0.1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(24, k)),
    )


NETWORKS = {
    "mlp": (lambda k: MLP((5, 12, 8, k)), (5,)),
    "mlp with batch norm": (lambda k: MLP((5, 12, 8, k), batch_norm=True), (5,)),
    "convnet": (convnet, (1, 8, 8)),
    "residual": (Residual, (1, 8, 8)),
}


STRUCTURES = ("full", "kron", "diag", "isotropic")
# (number of logits, predictive with a limit). All but the last have a certificate too.
METHODS = [
    (1, "probit"),
    (1, "quadrature"),
    (2, "pairwise"),
    (4, "pairwise"),
    (4, "probit"),
    (4, "meanfield"),
    (4, "bridge"),
]
CERTIFIED = METHODS[:-1]


def network(name, k, n, seed=0):
    """A network in float64 and inputs (n, …). Batch norms have seen data, and biases are not small."""
    torch.manual_seed(seed)
    make, shape = NETWORKS[name]
    model, x = make(k).double(), torch.randn(n, *shape, dtype=torch.float64)
    model.train()
    with torch.no_grad():
        model(2 * x + 1)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.5 * torch.randn_like(parameter)
    return model.eval(), x


def laplace(name, k, n=40, seed=0, *, predicted=False, **options):
    """A fitted Laplace approximation of one of the networks, and inputs x; it was fitted to 2x.

    `predicted`: the labels are those of `predicted_labels`, so that the features of the head lie in classes.
    Otherwise they depend on nothing, and almost no point is far from all classes.
    """
    model, x = network(name, k, n, seed)
    labels = torch.arange(n) % max(k, 2)
    if predicted:
        labels = predicted_labels(model, 2 * x)
    return bb.Laplace(model, **options).fit([(2 * x, labels)]), x


def predicted_labels(model, x):
    """The classes (n,) whose logits are furthest above their medians, so that all have some points."""
    with torch.no_grad():
        logits = model(x)
        logits = logits - logits.median(0).values
    return logits.argmax(1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()


def chosen_residual(bayes, near, beyond, seed=0, shortest=0.5):
    """Give the residual of a `Laplace` numbers as `tune` does: weights of its levels, and thresholds."""
    generator = torch.Generator().manual_seed(seed)
    names = bayes.known_residual.names
    weights = torch.rand(len(names), generator=generator).tolist()
    thresholds = (shortest * (1 + 5 * torch.rand(len(names), generator=generator))).tolist()
    bayes.settings = replace(
        bayes.settings,
        near_variance=near,
        beyond_variance=beyond,
        levels=dict(zip(names, weights, strict=True)),
        thresholds=dict(zip(names, thresholds, strict=True)),
    )


def region_of(model, x, **options):
    return final_region(model, find_head(private_copy(model), x[:2]), x, **options)


def deviation(model, x, region, delta):
    """The relative distance of the features and logits at δ·x from those of the final region, (n,)."""
    model = private_copy(model)
    with torch.no_grad():
        head = find_head(model, x[:2])
        here = forward(model, head, x * delta.reshape(-1, *[1] * (x.dim() - 1)))[:2]
    worst = torch.zeros_like(delta)
    for value, line in zip(here, (region.features, region.logits), strict=True):
        there = line.slope * delta[:, None] + line.intercept
        # Relative to the terms of a·δ + b, because at alpha the sum itself may be 0.
        size = (line.slope.abs() * delta[:, None] + line.intercept.abs()).amax(1)
        size = torch.maximum(size, 1e-3 * (1 + delta * x.abs().flatten(1).amax(1)))
        worst = torch.maximum(worst, (value - there).abs().amax(1) / size)
    return worst


def deltas(alpha, count):
    """δ ≥ alpha, (count, n): log-spaced from max(alpha, 1e-3) to 1e12."""
    start = alpha.clamp_min(1e-3)
    steps = torch.linspace(0, 1, count, dtype=torch.float64, device=alpha.device)[:, None]
    return start * (1e12 / start).clamp_min(1) ** steps


def largest_beyond(bayes, x, grid):
    """The largest confidence at δ·x over a grid (m, n) of δ, (n,)."""
    shape = (-1, *[1] * (x.dim() - 1))
    return torch.stack([bayes.predict_proba(x * delta.reshape(shape)).amax(1) for delta in grid]).amax(0)


def fine_grid(alpha, count):
    """δ ≥ alpha, (2·count, n): first evenly spaced in alpha/δ, then log-spaced."""
    start = alpha.clamp_min(1e-3)
    return torch.cat(
        [start / torch.linspace(1e-2, 1, count, dtype=torch.float64)[:, None], deltas(alpha, count)]
    )


def agrees(bayes, x, delta=1e9):
    """Assert that the limit is the prediction at a large δ, with the same class."""
    limit = bayes.limit(x)
    probs = bayes.predict_proba(delta * x)
    assert limit.confidence.shape == limit.label.shape == (len(x),)
    torch.testing.assert_close(limit.confidence, probs.amax(1), rtol=0, atol=1e-5)
    torch.testing.assert_close(probs.gather(1, limit.label[:, None])[:, 0], probs.amax(1), rtol=0, atol=1e-5)


def slopes(model, x):
    """u (k, D) as a function of the parameters: W₃D₂W₂D₁W₁, with the units that are on at 1e9·x."""
    masks, value = [], 1e9 * x
    for layer in model:
        value = layer(value)
        if isinstance(layer, nn.ReLU):
            masks.append((value > 0).to(x))

    def product(parameters):
        first, second, third = (parameters[f"{i}.weight"] for i in (0, 2, 4))
        return third @ (masks[1][:, None] * second) @ (masks[0][:, None] * first)

    return product


def kron_factors(model, x, labels):
    """Σ φ̃φ̃ᵀ and Σ gᵀΛg of each linear layer of a sequence, by plain derivatives."""
    value, hessians = x, logit_hessians(model(x).detach(), labels)
    for number, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            wide = torch.cat([value, torch.ones_like(value[:, :1])], 1)
            rest = nn.Sequential(*list(model)[number + 1 :])
            outputs = [jacrev(rest)(each) for each in layer(value)]  # (k, o) for each point
            yield wide.T @ wide, sum(g.T @ h @ g for g, h in zip(outputs, hessians, strict=True)).detach()
        value = layer(value).detach()


# ---- bounds by numerical maximisation


def largest_ratio(mean, variance):
    """max over φ of |gᵀφ|/√(φᵀSφ), by gradient ascent."""
    phi = torch.linspace(0.3, 1.2, len(mean), dtype=torch.float64, requires_grad=True)
    steps = torch.optim.LBFGS([phi], 0.5, max_iter=400, tolerance_grad=1e-12, tolerance_change=1e-15)

    def loss():
        steps.zero_grad()
        value = -(mean @ phi).square().log() + (phi @ variance @ phi).log()
        value.backward()
        return value

    with torch.enable_grad():
        steps.step(loss)
        return (-loss() / 2).exp().detach()


def plain_bound(means, covariance_of, method):
    """The bound from means (k, D) of each logit; covariance_of(c) (D, D) is that of a combination c."""
    k = len(means)
    one = torch.eye(k, dtype=torch.float64)
    if k == 1:
        ratio = largest_ratio(means[0], covariance_of(one[0]))
        return torch.special.ndtr(ratio) if method == "quadrature" else (ratio / KAPPA**0.5).sigmoid()
    pairs = [(i, j) for i in range(k) for j in range(i)]
    z = torch.zeros(k, k, dtype=torch.float64)
    if method == "meanfield":
        mean_variance = sum(covariance_of(one[i] - one[j]) for i, j in pairs) / len(pairs)
    for i, j in pairs:
        variance = mean_variance if method == "meanfield" else covariance_of(one[i] - one[j])
        z[i, j] = z[j, i] = largest_ratio(means[i] - means[j], variance) / KAPPA**0.5
    if method == "meanfield":
        return (1 / (-z).exp().sum(1)).amax()
    low, high = 1 / z.exp().sum(1), 1 / (-z).exp().sum(1)
    if method == "probit":
        centred = [largest_ratio(c @ means, covariance_of(c)) / KAPPA**0.5 for c in one - 1 / k]
        high = torch.stack(centred).exp()
        low = 1 / high
    return torch.stack([high[i] / (high[i] + low.sum() - low[i]) for i in range(k)]).amax()


def of_rows(sigma, k):
    """c ↦ the covariance of Σᵢ cᵢwᵢ, from Σ (kD, kD)."""
    blocks = sigma.reshape(k, len(sigma) // k, k, len(sigma) // k)
    return lambda c: torch.einsum("i,iajb,j->ab", c, blocks, c)
