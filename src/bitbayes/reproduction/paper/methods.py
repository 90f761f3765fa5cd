"""The methods that the tables compare, each as written in the paper or as bitbayes does it.

A method is fitted once to a trained network. In each trial it chooses its hyperparameters (a temperature, a
prior variance, those of the residual) on validation data, and predicts with them. Methods of the last layer
need only features, which are computed once for each set of images and serve every method and trial.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

import bitbayes as bb
from bitbayes.errors import EdgeWarning
from bitbayes.laplace import NUMBERS
from bitbayes.predictive import average_networks
from bitbayes.reproduction.data import scale_pixels

IMAGES_PER_BATCH = 1000
FEATURES_PER_BATCH = 5000
OUTLIER_WEIGHT = 0.25  # the paper's λ
SAMPLED_NETWORKS, SAMPLED_NETWORKS_IN_TUNING = 20, 5
# The paper's range of prior variances, for sampled networks.
LOG10_PRIOR_VARIANCES = [-6 + i / 2 for i in range(13)]

# What a method chose in a trial, by name.
Hyperparameters = dict[str, float]


@dataclass(frozen=True)
class Points:
    """Data points: images (n, c, h, w) as floats, and their features (n, d), the last layer's input."""

    images: Tensor
    features: Tensor

    def __getitem__(self, rows: Any) -> Points:
        return Points(self.images[rows], self.features[rows])


class Network:
    """A trained sequential network, split into a backbone, which gives features, and a last linear layer."""

    def __init__(self, whole: nn.Module) -> None:
        assert isinstance(whole, nn.Sequential)
        self.whole = whole.eval()
        layers = list(whole)
        self.backbone, self.head = nn.Sequential(*layers[:-1]), layers[-1]
        self.device = next(whole.parameters()).device

    @torch.no_grad()
    def extract_features(self, images: Tensor) -> Points:
        """Compute the features of images, given as pixels in uint8 or as floats."""
        parts = [scale_pixels(part) for part in torch.split(images, IMAGES_PER_BATCH)]
        return Points(torch.cat(parts), torch.cat([self.backbone(part) for part in parts]))


class BatchLoader:
    """A loader of batches (x, y) of tensors, which makes no copies. Pixels in uint8 become floats."""

    def __init__(self, x: Tensor, y: Tensor, batch_size: int = IMAGES_PER_BATCH) -> None:
        self.x, self.y, self.batch_size = x, y, batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = (torch.split(each, self.batch_size) for each in (self.x, self.y))
        for x, y in zip(*batches, strict=True):
            yield scale_pixels(x), y


class Method(Protocol):
    """A method as the tables use it.

    `tune` returns the hyperparameters chosen on validation points and noise. With these, `predict_proba`
    returns probabilities (n, k), and `as_module` returns a module that gives logits, to be attacked.
    """

    def fit(self, network: Network, images: Tensor, train: Points | None, labels: Tensor) -> None: ...
    def tune(self, validation: Points, labels: Tensor, noise: Points) -> Hyperparameters: ...
    def predict_proba(self, inputs: Points, chosen: Hyperparameters, seed: int) -> Tensor: ...
    def as_module(self, chosen: Hyperparameters) -> nn.Module: ...


class Plain:
    """The network as it was trained."""

    def fit(self, network: Network, images: Tensor, train: Points | None, labels: Tensor) -> None:
        self.network = network

    def tune(self, validation: Points, labels: Tensor, noise: Points) -> Hyperparameters:
        return {}

    @torch.no_grad()
    def predict_proba(self, inputs: Points, chosen: Hyperparameters, seed: int) -> Tensor:
        return probabilities(self.network.head(inputs.features))

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        return self.network.whole


class Temperature(Plain):
    """Temperature scaling."""

    def tune(self, validation: Points, labels: Tensor, noise: Points) -> Hyperparameters:
        scaled = bb.TemperatureScaling(self.network.head)
        with ignore_edge_warnings():
            scaled.fit([(validation.features, labels)], progress=False)
        return {"temperature": scaled.temperature}

    @torch.no_grad()
    def predict_proba(self, inputs: Points, chosen: Hyperparameters, seed: int) -> Tensor:
        logits = self.network.head(inputs.features)
        if logits.shape[1] > 1:  # makes the largest logit 0: dividing it by a small T could overflow
            logits = logits - logits.amax(1, keepdim=True)
        return probabilities(logits / chosen["temperature"])

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        scaled = bb.TemperatureScaling(self.network.whole)
        scaled.temperature = chosen["temperature"]
        return scaled


class LastLayer:
    """A Laplace approximation of the last layer, fitted to features."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def fit(self, network: Network, images: Tensor, train: Points | None, labels: Tensor) -> None:
        assert train is not None
        self.network = network
        self.bayes = bb.Laplace(network.head, residual=False, **self.options)
        self.bayes.fit(BatchLoader(train.features, labels, FEATURES_PER_BATCH), progress=False)

    def tune(self, validation: Points, labels: Tensor, noise: Points) -> Hyperparameters:
        return tune_laplace(self.bayes, [(validation.features, labels)], noise.features)

    def predict_proba(self, inputs: Points, chosen: Hyperparameters, seed: int) -> Tensor:
        generator = torch.Generator(inputs.features.device).manual_seed(seed)
        return set_hyperparameters(self.bayes, chosen).predict_proba(inputs.features, generator=generator)

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        return nn.Sequential(self.network.backbone, set_hyperparameters(self.bayes, chosen))


class WholeNetwork:
    """A Laplace approximation that needs the images themselves: of all layers, or with a residual."""

    def __init__(self, residual: bool | str = False, **options: Any) -> None:
        self.options = {"residual": residual, **options}

    def fit(self, network: Network, images: Tensor, train: Points | None, labels: Tensor) -> None:
        self.bayes = bb.Laplace(network.whole, **self.options)
        self.bayes.fit(BatchLoader(images, labels), progress=False)

    def tune(self, validation: Points, labels: Tensor, noise: Points) -> Hyperparameters:
        outliers = list(torch.split(noise.images, IMAGES_PER_BATCH))
        return tune_laplace(self.bayes, BatchLoader(validation.images, labels), outliers)

    def predict_proba(self, inputs: Points, chosen: Hyperparameters, seed: int) -> Tensor:
        batches = list(torch.split(inputs.images, IMAGES_PER_BATCH))
        return set_hyperparameters(self.bayes, chosen).predict_proba(batches)

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        return set_hyperparameters(self.bayes, chosen)


class Default(WholeNetwork):
    """bitbayes without any option: `tune` chooses prior variance, temperature and residual."""

    def __init__(self, **options: Any) -> None:
        super().__init__(residual="auto", **options)

    def tune(self, validation: Points, labels: Tensor, noise: Points) -> Hyperparameters:
        self.bayes.tune(BatchLoader(validation.images, labels), progress=False)
        return {name: getattr(self.bayes, name) for name in NUMBERS}


class WithResidual(WholeNetwork):
    """The likelihood alone chooses prior variance and residual, at a temperature of 1."""

    def __init__(self, **options: Any) -> None:
        super().__init__(residual=True, **options)

    def tune(self, validation: Points, labels: Tensor, noise: Points) -> Hyperparameters:
        return tune_laplace(self.bayes, BatchLoader(validation.images, labels), None)


class PlusResidual(WithResidual):
    """The residual that the likelihood chooses, with the prior variance that `LastLayer` chooses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.last_layer = LastLayer(**options)

    def fit(self, network: Network, images: Tensor, train: Points | None, labels: Tensor) -> None:
        super().fit(network, images, train, labels)
        train = train if train is not None else network.extract_features(images)
        self.last_layer.fit(network, images, train, labels)

    def tune(self, validation: Points, labels: Tensor, noise: Points) -> Hyperparameters:
        return super().tune(validation, labels, noise) | self.last_layer.tune(validation, labels, noise)


class WeightSamples(WholeNetwork):
    """The average over 20 networks drawn from a posterior over all layers, as the paper's DLA and KFLA.

    The best prior variance of sampled networks is not that of the linearised network, so it is chosen on
    sampled networks too. There are five of them, made from the same random numbers for every candidate. The
    candidates are each half decade of the paper's range, and then each quarter decade around the best. Tuning
    uses at most `points` points of each set.
    """

    def __init__(self, points: int, **options: Any) -> None:
        super().__init__(**options)
        self.points = points
        self.drawn: tuple[tuple[float, int, int], dict[str, Tensor]] | None = None

    def fit(self, network: Network, images: Tensor, train: Points | None, labels: Tensor) -> None:
        super().fit(network, images, train, labels)
        self.network = network

    def tune(self, validation: Points, labels: Tensor, noise: Points) -> Hyperparameters:
        validation, labels, noise = validation[: self.points], labels[: self.points], noise[: self.points]

        def cost(exponent: float) -> float:
            p, q = (
                self._average(inputs.images, 10**exponent, 0, SAMPLED_NETWORKS_IN_TUNING)
                for inputs in (validation, noise)
            )
            if not (p.isfinite().all() and q.isfinite().all()):  # a large variance makes a network overflow
                return math.inf
            return bb.metrics.nll(p, labels) - OUTLIER_WEIGHT * bb.metrics.entropy(q)

        return {"prior_variance": float(10 ** minimise_on_grid(cost, LOG10_PRIOR_VARIANCES))}

    def predict_proba(self, inputs: Points, chosen: Hyperparameters, seed: int) -> Tensor:
        return self._average(inputs.images, chosen["prior_variance"], seed, SAMPLED_NETWORKS)

    @torch.no_grad()
    def _average(self, images: Tensor, prior_variance: float, seed: int, samples: int) -> Tensor:
        """Return mean probabilities (n, k) over sampled networks, the same ones for every set of images."""
        average = Average(self.network.whole, self._draw_weights(prior_variance, seed, samples))
        return torch.cat([probabilities(average(x)) for x in torch.split(images, IMAGES_PER_BATCH)])

    def _draw_weights(self, prior_variance: float, seed: int, samples: int) -> dict[str, Tensor]:
        """Return stacked weights. The last draws are kept, because a table asks for them several times."""
        key = prior_variance, seed, samples
        if self.drawn is None or self.drawn[0] != key:
            self.drawn = None  # frees memory for the new ones
            self.bayes.prior_variance = prior_variance
            generator = torch.Generator(self.network.device).manual_seed(seed)
            self.drawn = key, self.bayes.sample(samples, generator=generator)
        return self.drawn[1]

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        return Average(self.network.whole, self._draw_weights(chosen["prior_variance"], 0, SAMPLED_NETWORKS))


class Average(nn.Module):
    """The average of sampled networks. Its output are drop-in logits, NaN where a network overflows."""

    def __init__(self, network: nn.Module, draws: dict[str, Tensor]) -> None:
        super().__init__()
        self.network, self.draws = network, draws

    def forward(self, images: Tensor) -> Tensor:
        networks = (
            dict(zip(self.draws, each, strict=True)) for each in zip(*self.draws.values(), strict=True)
        )
        outputs = torch.stack([functional_call(self.network, weights, (images,)) for weights in networks])
        return torch.where(outputs.isfinite().all(), average_networks(outputs), torch.nan)


def tune_laplace(bayes: bb.Laplace, validation: Any, outliers: Any) -> Hyperparameters:
    """Tune by the paper's objective or, if `outliers` is None, by the likelihood. Return the choice."""
    objective = "nll" if outliers is None else "ood"
    with ignore_edge_warnings():
        bayes.tune(validation, outliers=outliers, objective=objective, weight=OUTLIER_WEIGHT, progress=False)
    return get_hyperparameters(bayes)


def get_hyperparameters(bayes: bb.Laplace) -> Hyperparameters:
    """Return the prior variance and, with a residual, its two hyperparameters."""
    names = ("residual_variance", "residual_threshold") if bayes.options.residual_asked else ()
    return {name: getattr(bayes, name) for name in ("prior_variance", *names)}


def set_hyperparameters(bayes: bb.Laplace, chosen: Hyperparameters) -> bb.Laplace:
    """Set the hyperparameters of `bayes`, and return it."""
    for name, value in chosen.items():
        setattr(bayes, name, value)
    return bayes


@contextmanager
def ignore_edge_warnings() -> Iterator[None]:
    """Suppress the warning that a choice lies on the edge of the range. The tables show that themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        yield


def minimise_on_grid(cost: Callable[[float], float], grid: list[float]) -> float:
    """Return the best point of an even grid, or a point half a step beside it if that is better.

    >>> minimise_on_grid(lambda x: (x - 1.3) ** 2, [0.0, 1.0, 2.0, 3.0])
    1.5
    """
    costs = {x: cost(x) for x in grid}
    best, half = min(costs, key=costs.__getitem__), (grid[1] - grid[0]) / 2
    costs |= {x: cost(x) for x in (best - half, best + half) if grid[0] < x < grid[-1]}
    return min(costs, key=costs.__getitem__)


def probabilities(logits: Tensor) -> Tensor:
    """Return the softmax of k logits (n, k), or both classes' probabilities (n, 2) of one logit (n, 1)."""
    if logits.shape[1] == 1:
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)
    return logits.softmax(1)


@dataclass(frozen=True)
class MethodEntry:
    """A method in a table."""

    title: str
    paper_column: str | None  # its column in the paper's tables
    make: Callable[[int], Method]  # takes the number of points on which sampled networks are tuned


MULTICLASS = {
    "plain": MethodEntry("Plain network", "MAP", lambda points: Plain()),
    "temperature": MethodEntry("Temperature scaling", "Temp", lambda points: Temperature()),
    "llla": MethodEntry(
        "LLLA (paper's)",
        "LLLA",
        lambda points: LastLayer(structure="kron", curvature="paper", predictive="mc"),
    ),
    "dla": MethodEntry(
        "DLA (paper's)",
        "DLA",
        lambda points: WeightSamples(
            points, layers="all", structure="diag", curvature="paper", predictive="weights"
        ),
    ),
    "kfla": MethodEntry(
        "KFLA (paper's)",
        "KFLA",
        lambda points: WeightSamples(
            points, layers="all", structure="kron", curvature="paper", predictive="weights"
        ),
    ),
    "default": MethodEntry("bitbayes (default)", None, lambda points: Default()),
    "ours": MethodEntry("Ours, closed form", None, lambda points: LastLayer()),
    "ours-mc": MethodEntry("Ours, Monte Carlo", None, lambda points: LastLayer(predictive="mc")),
    "ours-residual": MethodEntry("Ours, NLL and residual", None, lambda points: WithResidual()),
    "ours-plus-residual": MethodEntry("Ours, closed form + residual", None, lambda points: PlusResidual()),
}
BINARY = {
    "plain": MULTICLASS["plain"],
    "temperature": MULTICLASS["temperature"],
    "llla": MethodEntry("LLLA (paper's)", "LLLA", lambda points: LastLayer()),
    "default": MULTICLASS["default"],
    "ours": MethodEntry("Ours, exact integral", None, lambda points: LastLayer(predictive="quadrature")),
    "ours-residual": MULTICLASS["ours-residual"],
    "ours-plus-residual": MethodEntry(
        "Ours, exact integral + residual", None, lambda points: PlusResidual(predictive="quadrature")
    ),
}
