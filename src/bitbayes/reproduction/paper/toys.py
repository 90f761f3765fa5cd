"""The toy problems in the plane: their points, their networks, and the methods fitted to these."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.reproduction.data import gaussians, two_moons
from bitbayes.reproduction.networks import MLP
from bitbayes.reproduction.paper.methods import (
    Hyperparameters,
    ignore_edge_warnings,
    probabilities,
)
from bitbayes.reproduction.paper.options import Options
from bitbayes.reproduction.training.objectives import label_loss

VALIDATION_POINTS = 50
SGD_STEPS, QUICK_SGD_STEPS = 5000, 200
LEARNING_RATE = 1e-3
TOY_OUTLIER_WEIGHT = 1.0  # λ of the toys, from the paper's code


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
    validation = two_moons(VALIDATION_POINTS, noise=0.05, seed=1)
    return Toy("moons", "Two moons", *two_moons(), validation, (-3.0, 3.0), 1, False)


def make_two_gaussians() -> Toy:
    return _make_gaussians("Two Gaussians", 90, 2, 0.7, (4.0, 7.5), 62, (0.0, 12.0), True)


def make_four_gaussians() -> Toy:
    return _make_gaussians("Four Gaussians", 500, 4, 1.2, (-10.0, 10.0), 37, (-20.0, 20.0), False)


TOY_PROBLEMS: tuple[Callable[[], Toy], ...] = (make_moons, make_two_gaussians, make_four_gaussians)

Interval = tuple[float, float]


def _make_gaussians(
    title: str, n: int, k: int, std: float, centres: Interval, seed: int, outliers: Interval, batch_norm: bool
) -> Toy:
    x, y = gaussians(n, classes=k, std=std, box=centres, seed=seed)
    # The seed also draws the centres, so validation points come from a larger draw with the same seed. In it,
    # the last points of each class use random numbers that the training points do not use.
    each = VALIDATION_POINTS // k
    more, labels = gaussians(k * (n + each), classes=k, std=std, box=centres, seed=seed)
    chosen = torch.cat([torch.nonzero(labels == c)[-each:, 0] for c in range(k)])
    validation = more[chosen], labels[chosen]
    return Toy(f"gaussians-{k}", title, x, y, validation, outliers, 1 if k == 2 else k, batch_norm)


def train_toy(toy: Toy, options: Options) -> nn.Module:
    """Train a 3-layer ReLU network with 20 units per hidden layer, by 5,000 full-batch steps of SGD."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99_999 + options.seed)
        network = MLP((2, 20, 20, toy.outputs), batch_norm=toy.batch_norm, last_bias=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4)
    network.train()
    for _ in range(QUICK_SGD_STEPS if options.quick else SGD_STEPS):
        optimizer.zero_grad()
        label_loss(network(toy.x), toy.y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network.eval()


class FittedMethod(NamedTuple):
    """A method fitted to a toy problem."""

    predict_proba: Callable[[Tensor], Tensor]  # maps points (n, 2) to probabilities (n, k)
    chosen: Hyperparameters


def fit_laplace(toy: Toy, network: nn.Module, **options: object) -> bb.Laplace:
    """Return a Laplace approximation, fitted to the training points and tuned by the paper's objective."""
    bayes = bb.Laplace(network, **options)  # type: ignore[arg-type]
    bayes.fit([(toy.x, toy.y)], progress=False)
    with ignore_edge_warnings():
        bayes.tune(
            [toy.validation],
            outliers=toy.draw_outliers(),
            objective="ood",
            weight=TOY_OUTLIER_WEIGHT,
            progress=False,
        )
    return bayes


def fit_laplace_with_residual(toy: Toy, network: nn.Module) -> bb.Laplace:
    """Return a Laplace approximation with the ReLU-GP residual, tuned by the validation NLL alone."""
    bayes = bb.Laplace(network, structure="full", residual=True).fit([(toy.x, toy.y)], progress=False)
    with ignore_edge_warnings():
        return bayes.tune([toy.validation], objective="nll", progress=False)


def fit_methods(toy: Toy, network: nn.Module) -> dict[str, FittedMethod]:
    """Return the fitted methods, by the names that the figure gives them."""
    scaled = bb.TemperatureScaling(network).fit([toy.validation], progress=False)

    @torch.no_grad()
    def plain(x: Tensor) -> Tensor:
        return probabilities(network(x))

    bayes = {
        "Last layer": fit_laplace(toy, network, structure="full"),
        "All layers": fit_laplace(toy, network, layers="all", structure="full"),
        "Isotropic": fit_laplace(toy, network, structure="isotropic"),
        "Residual": fit_laplace_with_residual(toy, network),
    }
    return {
        "Plain": FittedMethod(plain, {}),
        "Temperature": FittedMethod(scaled.predict_proba, {"temperature": scaled.temperature}),
        **{name: FittedMethod(each.predict_proba, _chosen(each)) for name, each in bayes.items()},
    }


def _chosen(bayes: bb.Laplace) -> Hyperparameters:
    """Return the prior variance and, with a residual, its two hyperparameters."""
    names = ("residual_variance", "residual_threshold") if bayes.options.residual_asked else ()
    return {name: getattr(bayes, name) for name in ("prior_variance", *names)}
