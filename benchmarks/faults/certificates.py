"""Random networks with random settings: does every certificate hold, and is every limit approached?

    python benchmarks/faults/certificates.py [--networks 2000] [--seed 0] [--only NUMBER]

MLPs and small ConvNets with batch norm, leaky ReLUs, residual sums, max and average pooling, dead units,
constant columns and weights of odd scales; one logit or several; float32 and float64; over the last layer or
all layers; every predictive with a certificate; the residual at the input and hidden levels, at hidden levels
alone, or nowhere. For each network, with rays δ·x of several inputs, it counts

- above: predictions at some δ ≥ alpha that are more confident than `certify(x).confidence`,
- limits: rays whose prediction at a very large δ differs from `limit(x).confidence`,
- sums: rows of `predict_proba` that are no probabilities,

all up to the rounding of the dtype. Networks may overflow: an error of bitbayes counts as refused, and any
other error as a failure. `--only` repeats one network, whose number is printed with each violation.
"""

import argparse
import random
import time
import warnings
from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor, nn

import bitbayes as bb

KINDS = ("above", "limits", "sums", "failed")
# For one logit, and for several.
PREDICTIVES = ["probit", "quadrature"], ["pairwise", "probit", "meanfield"]
STRUCTURES = {"last": ["full", "kron", "diag", "isotropic"], "all": ["kron", "diag"]}
# What a prediction may exceed a certificate by, and what a sum of probabilities may be off by.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}
SUM_ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}
# How far beyond alpha a ray is followed, so that float32 still has digits of what does not grow.
FURTHEST = {torch.float64: 1e12, torch.float32: 1e5}
# Where it is near its limit, relative to alpha, and how near. With a residual it gets there like 1/√δ.
INFINITY = {torch.float64: 1e30, torch.float32: 1e20}
NEAR_THE_LIMIT = {torch.float64: 1e-6, torch.float32: 1e-2}
POINTS, RAYS, STEPS = 40, 6, 30


class Sum(nn.Module):
    """x + block(x)."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one network")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found, start = Counter(), time.monotonic()
    numbers = range(options.networks) if options.only is None else [options.only]
    for done, number in enumerate(numbers, 1):
        trial(random.Random(f"{options.seed} {number}"), found, number)
        if done % 100 == 0 or done == len(numbers):
            counts = ", ".join(f"{kind} {found[kind]:,}" for kind in ("predictions", *KINDS, "refused"))
            print(f"{done:,} networks in {time.monotonic() - start:.0f} s: {counts}", flush=True)


def trial(chance: random.Random, found: Counter, number: int) -> None:
    """Draw one network with its settings, and count what is wrong with it."""
    torch.manual_seed(chance.randrange(2**31))
    layers, k = chance.choices(["last", "all"], [4, 1])[0], chance.choice([1, 1, 2, 3, 5])
    dtype = chance.choice([torch.float64, torch.float64, torch.float32])
    model, x = network(chance, k, dtype, small=layers == "all")
    residual = chance.choice(["none", "input", "hidden"])
    setting = {
        "layers": layers,
        "structure": chance.choice(STRUCTURES[layers]),
        "predictive": chance.choice(PREDICTIVES[k > 1]),
        "residual": {"none": False, "input": True, "hidden": named_levels(chance, model)}[residual],
    }
    bayes = bb.Laplace(model, **setting)
    try:
        bayes.fit([(x, torch.arange(POINTS) % max(k, 2))], progress=False)
        choose(chance, bayes, alone=residual == "hidden")
        wrong = check(bayes, rays(chance, x), found)
    except bb.errors.BitbayesError:
        found["refused"] += 1
        return
    except Exception as error:
        wrong = {"failed": f"{type(error).__name__}: {error}"}
    for kind, what in wrong.items():
        found[kind] += 1
        print(f"network {number}, {kind}: {what}; k={k}, {dtype}, {setting}, {bayes.settings}", flush=True)


# ---- what is drawn


def network(chance: random.Random, k: int, dtype: torch.dtype, *, small: bool) -> tuple[nn.Module, Tensor]:
    """Return a network in eval mode, whose batch norms have seen data, and inputs."""
    images = chance.random() < 0.4
    columns = chance.choice([1, 3, 8])
    shape = (chance.choice([1, 2]), 8, 8) if images else (columns,)
    x = 10 ** chance.uniform(-1, 1) * torch.randn(POINTS, *shape) + chance.choice([0, 0, 3])
    if chance.random() < 0.4:  # a column, or a row of pixels, that never varies
        x[..., 0] = chance.choice([0.0, 0.1, -7.3, 1 / 3])
    body = convnet(chance, shape[0], small) if images else mlp(chance, columns, small)
    with torch.no_grad():
        width = nn.Sequential(*body)(x).shape[1]
    model = nn.Sequential(*body, nn.Linear(width, k, bias=chance.random() < 0.8))
    with torch.no_grad():
        model.train()(x)
        for parameter in model.parameters():
            if chance.random() < 0.3:
                parameter *= 10 ** chance.uniform(-2, 1.5)
            if parameter.dim() == 1 and chance.random() < 0.7:
                parameter += 10 ** chance.uniform(-2, 1) * torch.randn_like(parameter)
            if parameter.dim() > 1 and chance.random() < 0.2:
                parameter[0] = 0  # a unit that depends on nothing, or with its bias one that is dead
            if parameter.dim() == 1 and chance.random() < 0.2:
                parameter[0] = -1e3
    return model.to(dtype).eval(), x.to(dtype)


def activation(chance: random.Random) -> nn.Module:
    return chance.choice([nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(10 ** chance.uniform(-3, -0.3))])


def normalised(chance: random.Random, norm: nn.Module) -> list[nn.Module]:
    """Return an activation, with or without a batch norm before or behind it, where units may be dead."""
    return chance.choice([[activation(chance)], [norm, activation(chance)], [activation(chance), norm]])


def mlp(chance: random.Random, columns: int, small: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(chance.choice([0, 1, 2, 3])):
        width = chance.choice([2, 6] if small else [2, 6, 16])
        layers += [nn.Linear(columns, width, bias=chance.random() < 0.8)]
        layers += normalised(chance, nn.BatchNorm1d(width))
        if chance.random() < 0.3:
            layers += [Sum(nn.Sequential(nn.Linear(width, width), activation(chance))), nn.Dropout(0.5)]
        columns = width
    return layers or [nn.Identity()]


def convnet(chance: random.Random, channels: int, small: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(chance.choice([1, 2])):
        width = chance.choice([2, 3] if small else [2, 4])
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=chance.random() < 0.8)]
        layers += normalised(chance, nn.BatchNorm2d(width))
        if chance.random() < 0.3:
            layers += [Sum(nn.Conv2d(width, width, 3, padding=1)), activation(chance)]
        layers += [chance.choice([nn.MaxPool2d(2), nn.AvgPool2d(2)])]
        channels = width
    return [*layers, *chance.choice([[nn.Flatten()], [nn.AdaptiveAvgPool2d(1), nn.Flatten()]])]


def named_levels(chance: random.Random, model: nn.Module) -> list[str]:
    """Return the names of one or two layers whose inputs are levels of the residual."""
    names = [name for name, each in model.named_modules() if isinstance(each, (nn.Linear, nn.Conv2d))]
    return chance.sample(names, min(len(names), chance.choice([1, 2])))


def choose(chance: random.Random, bayes: bb.Laplace, *, alone: bool) -> None:
    """Give it settings; `alone`: the residual's hidden levels count, and its input does not."""
    bayes.prior_variance, bayes.temperature = 10 ** chance.uniform(-4, 6), 10 ** chance.uniform(-1, 1)
    if bayes.known_residual is None:
        return
    names = bayes.known_residual.names
    weights = {name: 0.0 if alone and name == "input" else 10 ** chance.uniform(-3, 0) for name in names}
    beyond = 0.0 if alone or chance.random() < 0.3 else 10 ** chance.uniform(-3, 2)
    bayes.settings = replace(
        bayes.settings,
        near_variance=10 ** chance.uniform(-4, 2) if alone or not beyond or chance.random() < 0.7 else 0.0,
        beyond_variance=beyond,
        levels=weights,
        thresholds={name: 10 ** chance.uniform(-0.5, 1) for name in names} if beyond else {},
    )


def rays(chance: random.Random, x: Tensor) -> Tensor:
    """Return some inputs, of which one has zeros and one is of another size."""
    found = x[:RAYS].clone()
    found[0] *= torch.rand_like(found[0]) < 0.5
    found[1] *= 10 ** chance.uniform(-6, 6)
    return found


# ---- what is checked


def check(bayes: bb.Laplace, x: Tensor, found: Counter) -> dict[str, str]:
    """Return what is wrong along the rays of x, by its kind."""
    certificate, limit = bayes.certify(x), bayes.limit(x).confidence
    wrong = {}
    grid = deltas(certificate.alpha, FURTHEST[x.dtype])  # (m, n)
    p = predict(bayes, x, grid, found)
    sums = float((p.sum(2) - 1).abs().max())
    if not bool(p.isfinite().all()) or bool((p < 0).any()) or sums > SUM_ROUNDING[x.dtype]:
        wrong["sums"] = f"off by {sums:.1e}"
    excess = p.amax(2) - certificate.confidence
    if float(excess.max()) > ROUNDING[x.dtype]:
        place, ray = divmod(int(excess.argmax()), len(x))
        wrong["above"] = (
            f"{float(p[place, ray].max()):.6f} at {float(grid[place, ray]):.4g}·x, certified "
            f"{float(certificate.confidence[ray]):.6f} beyond {float(certificate.alpha[ray]):.4g}"
        )
    far = predict(bayes, x, furthest(certificate.alpha, x), found)[0].amax(1)
    if not torch.allclose(certificate.limit, limit, rtol=0, atol=1e-9):
        wrong["limits"] = f"{certificate.limit.tolist()} by certify, {limit.tolist()} by limit"
    elif float((far - limit).abs().max()) > NEAR_THE_LIMIT[x.dtype]:
        ray = int((far - limit).abs().argmax())
        wrong["limits"] = f"{float(far[ray]):.6f} far away, {float(limit[ray]):.6f} by limit"
    return wrong


def deltas(alpha: Tensor, furthest: float) -> Tensor:
    """Return δ ≥ alpha, (m, n): evenly spaced in alpha/δ first, and then in the logarithm."""
    start = alpha.clamp_min(1e-3)
    near = start / torch.linspace(1e-2, 1, STEPS, dtype=torch.float64)[:, None]
    return torch.cat([near, start * furthest ** torch.linspace(0, 1, STEPS, dtype=torch.float64)[:, None]])


def furthest(alpha: Tensor, x: Tensor) -> Tensor:
    """Return a δ (1, n) that is very large beside alpha and the data."""
    size = x.double().flatten(1).abs().amax(1).clamp_min(1e-30)
    return INFINITY[x.dtype] * torch.maximum(alpha, 1 / size)[None]


def predict(bayes: bb.Laplace, x: Tensor, grid: Tensor, found: Counter) -> Tensor:
    """Return the probabilities (m, n, classes) at δ·x for all δ of the grid (m, n), in float64."""
    points = grid.reshape(*grid.shape, *[1] * (x.dim() - 1)) * x.double()
    p = bayes.predict_proba(points.flatten(0, 1).to(x.dtype)).double()
    found["predictions"] += len(p)
    return p.reshape(*grid.shape, -1)


if __name__ == "__main__":
    main()
