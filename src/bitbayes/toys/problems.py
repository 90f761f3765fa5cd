"""The paper's toy problems in the plane: their points, and networks trained on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.toys.mlp import MLP
from bitbayes.toys.plane import gaussians, two_moons

VALIDATION_POINTS = 50
SGD_STEPS, QUICK_SGD_STEPS = 5000, 200
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Toy:
    """A problem in the plane."""

    name: str
    title: str
    x: Tensor  # (n, 2)
    y: Tensor  # (n,)
    validation: tuple[Tensor, Tensor]
    outlier_box: tuple[float, float]  # the sides of the square in which outliers for tuning are drawn
    outputs: int  # the number of logits
    batch_norm: bool

    def draw_outliers(self) -> Tensor:
        """Return outliers that are uniform on the square, as many as there are validation points."""
        low, high = self.outlier_box
        u = torch.rand(VALIDATION_POINTS, 2, generator=torch.Generator().manual_seed(0))
        return low + (high - low) * u


def make_moons() -> Toy:
    """Return the paper's two moons."""
    validation = two_moons(VALIDATION_POINTS, noise=0.05, seed=1)
    return Toy("moons", "Two moons", *two_moons(), validation, (-3.0, 3.0), 1, False)


def make_two_gaussians() -> Toy:
    """Return the paper's two clouds, for a network with batch norms."""
    clouds = Clouds(90, 2, 0.7, (4.0, 7.5), 62)
    return _make_gaussians("Two Gaussians", clouds, outliers=(0.0, 12.0), batch_norm=True)


def make_four_gaussians() -> Toy:
    """Return the paper's four clouds."""
    clouds = Clouds(500, 4, 1.2, (-10.0, 10.0), 37)
    return _make_gaussians("Four Gaussians", clouds, outliers=(-20.0, 20.0), batch_norm=False)


TOY_PROBLEMS: tuple[Callable[[], Toy], ...] = (make_moons, make_two_gaussians, make_four_gaussians)

Interval = tuple[float, float]


class Clouds(NamedTuple):
    """The arguments of `gaussians`: points, classes, deviation, range of the centres, and seed."""

    n: int
    k: int
    std: float
    centres: Interval
    seed: int


def _make_gaussians(title: str, clouds: Clouds, *, outliers: Interval, batch_norm: bool) -> Toy:
    n, k, std, centres, seed = clouds
    x, y = gaussians(n, classes=k, std=std, box=centres, seed=seed)
    # The seed also draws the centres, so validation points come from a larger draw with the same seed. In it,
    # the last points of each class use random numbers that the training points do not use.
    each = VALIDATION_POINTS // k
    more, labels = gaussians(k * (n + each), classes=k, std=std, box=centres, seed=seed)
    chosen = torch.cat([torch.nonzero(labels == c)[-each:, 0] for c in range(k)])
    validation = more[chosen], labels[chosen]
    return Toy(f"gaussians-{k}", title, x, y, validation, outliers, 1 if k == 2 else k, batch_norm)


def train_toy(toy: Toy, *, seed: int = 0, quick: bool = False) -> MLP:
    """Train a 3-layer ReLU network with 20 units per hidden layer, by 5,000 full-batch steps of SGD.

    Args:
        toy: the problem.
        seed: determines the initial weights.
        quick: take 200 steps only. The network has then learned little.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99_999 + seed)
        network = MLP((2, 20, 20, toy.outputs), batch_norm=toy.batch_norm, last_bias=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4)
    network.train()
    for _ in range(QUICK_SGD_STEPS if quick else SGD_STEPS):
        optimizer.zero_grad()
        _loss(network(toy.x), toy.y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network.eval()


def _loss(logits: Tensor, y: Tensor) -> Tensor:
    if logits.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], y.to(logits.dtype))
    return functional.cross_entropy(logits, y)
