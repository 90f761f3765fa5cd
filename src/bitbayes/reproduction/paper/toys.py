"""The toy problems in the plane: their points, their networks, and the methods fitted to those."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import bitbayes as bb
from bitbayes.reproduction.data import gaussians, two_moons
from bitbayes.reproduction.networks import MLP
from bitbayes.reproduction.paper.methods import Chosen, at_the_edge, numbers_of, probabilities
from bitbayes.reproduction.paper.options import Options

VALIDATION = 50
STEPS = 5000
RATE = 1e-3
WEIGHT = 1.0  # of outliers in tuning: the paper's for its toys


@dataclass(frozen=True)
class Toy:
    """Training and validation points, and the square in which outliers for tuning are drawn."""

    name: str
    title: str
    x: Tensor  # (n, 2)
    y: Tensor  # (n,)
    validation: tuple[Tensor, Tensor]
    box: tuple[float, float]
    outputs: int
    batch_norm: bool

    def outliers(self) -> Tensor:
        """Uniform on the square, as many as validation points."""
        low, high = self.box
        u = torch.rand(VALIDATION, 2, generator=torch.Generator().manual_seed(0))
        return low + (high - low) * u


def moons() -> Toy:
    validation = two_moons(VALIDATION, noise=0.05, seed=1)
    return Toy("moons", "Two moons", *two_moons(), validation, (-3.0, 3.0), 1, False)


def two_gaussians() -> Toy:
    return _clouds("gaussians-2", "Two Gaussians", 90, 2, 0.7, (4.0, 7.5), 62, (0.0, 12.0), 1, True)


def four_gaussians() -> Toy:
    return _clouds("gaussians-4", "Four Gaussians", 500, 4, 1.2, (-10.0, 10.0), 37, (-20.0, 20.0), 4, False)


TOYS: tuple[Callable[[], Toy], ...] = (moons, two_gaussians, four_gaussians)


def _clouds(
    name: str,
    title: str,
    n: int,
    classes: int,
    std: float,
    centres: tuple[float, float],
    seed: int,
    box: tuple[float, float],
    outputs: int,
    batch_norm: bool,
) -> Toy:
    x, y = gaussians(n, classes=classes, std=std, box=centres, seed=seed)
    # More points of the same clouds: the last ones of each class in a larger draw, whose random numbers
    # come after all those of the training points.
    each = VALIDATION // classes
    more, labels = gaussians(classes * (n + each), classes=classes, std=std, box=centres, seed=seed)
    chosen = torch.cat([torch.nonzero(labels == c)[-each:, 0] for c in range(classes)])
    return Toy(name, title, x, y, (more[chosen], labels[chosen]), box, outputs, batch_norm)


def train_toy(toy: Toy, options: Options) -> nn.Module:
    """A 3-layer ReLU network with 20 units: 5,000 full-batch steps of SGD."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99_999 + options.seed)
        network = MLP((2, 20, 20, toy.outputs), batch_norm=toy.batch_norm, last_bias=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    network.train()
    for _ in range(200 if options.quick else STEPS):
        optimizer.zero_grad()
        logits = network(toy.x)
        if toy.outputs == 1:
            loss = functional.binary_cross_entropy_with_logits(logits[:, 0], toy.y.float())
        else:
            loss = functional.cross_entropy(logits, toy.y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network.eval()


class Made(NamedTuple):
    """A method on a toy: probabilities (n, k) of points (n, 2), and the numbers that it chose."""

    predict: Callable[[Tensor], Tensor]
    chosen: Chosen


def bayesian(toy: Toy, network: nn.Module, **options: object) -> bb.Laplace:
    """A Laplace approximation, fitted to the toy's training points and tuned by the paper's objective."""
    bayes = bb.Laplace(network, **options)  # type: ignore[arg-type]
    bayes.fit([(toy.x, toy.y)], progress=False)
    with at_the_edge():
        bayes.tune([toy.validation], outliers=toy.outliers(), weight=WEIGHT, progress=False)
    return bayes


def with_residual(toy: Toy, network: nn.Module) -> bb.Laplace:
    """The last layer with the ReLU-GP residual, tuned by the validation NLL alone: no outliers."""
    bayes = bb.Laplace(network, structure="full", residual=True).fit([(toy.x, toy.y)], progress=False)
    with at_the_edge():
        return bayes.tune([toy.validation], objective="nll", progress=False)


def methods(toy: Toy, network: nn.Module) -> dict[str, Made]:
    """Each by the name that the figure gives it."""
    scaled = bb.TemperatureScaling(network).fit([toy.validation], progress=False)

    @torch.no_grad()
    def plain(x: Tensor) -> Tensor:
        return probabilities(network(x))

    bayes = {
        "Last layer": bayesian(toy, network, structure="full"),
        "All layers": bayesian(toy, network, layers="all", structure="full"),
        "Isotropic": bayesian(toy, network, structure="isotropic"),
        "Residual": with_residual(toy, network),
    }
    return {
        "Plain": Made(plain, {}),
        "Temperature": Made(scaled.predict_proba, {"temperature": scaled.temperature}),
        **{name: Made(each.predict_proba, numbers_of(each)) for name, each in bayes.items()},
    }
