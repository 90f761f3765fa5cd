"""The methods that the tables compare, each as written in the paper or as bitbayes does it.

A method is fitted once to a trained network. In each trial it chooses its numbers (a temperature, a prior
variance, the residual's) on validation data; with these it predicts. Methods of the last layer see features
alone, which are computed once for each set of images and serve every method and trial.
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

ROWS = 1000  # images that go through the network at once
WEIGHT = 0.25  # the paper's λ
WEIGHT_SAMPLES, TUNING_SAMPLES = 20, 5
# Of the prior variances tried for sampled networks: the paper's range.
EXPONENTS = [-6 + i / 2 for i in range(13)]

# What a method chose in a trial, by name.
Chosen = dict[str, float]


@dataclass(frozen=True)
class Seen:
    """Images (n, c, h, w) in [0, 1] (or scaled) and what the network's last layer makes of: (n, d)."""

    images: Tensor
    features: Tensor

    def __getitem__(self, rows: Any) -> Seen:
        return Seen(self.images[rows], self.features[rows])

    def __len__(self) -> int:
        return len(self.images)


class Network:
    """A trained sequential network as a backbone, which gives features, and a last linear layer."""

    def __init__(self, whole: nn.Module) -> None:
        assert isinstance(whole, nn.Sequential)
        self.whole = whole.eval()
        layers = list(whole)
        self.backbone, self.head = nn.Sequential(*layers[:-1]), layers[-1]
        self.device = next(whole.parameters()).device

    @torch.no_grad()
    def see(self, images: Tensor) -> Seen:
        """Features of images, as pixels in uint8 or as floats."""
        floats = [images_of(part) for part in torch.split(images, ROWS)]
        return Seen(torch.cat(floats), torch.cat([self.backbone(part) for part in floats]))

    def batches(self, images: Tensor, labels: Tensor) -> Batches:
        """A loader of images as floats, with labels."""
        return Batches(images, labels)


class Batches:
    """Images, as pixels or floats, and labels in batches; a loader without copies or workers."""

    def __init__(self, images: Tensor, labels: Tensor, rows: int = ROWS) -> None:
        self.images, self.labels, self.rows = images, labels, rows

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in zip(
            torch.split(self.images, self.rows), torch.split(self.labels, self.rows), strict=True
        ):
            yield images_of(x), y

    def __len__(self) -> int:
        return math.ceil(len(self.images) / self.rows)


def images_of(pixels: Tensor) -> Tensor:
    """Floats in [0, 1] of pixels in uint8; floats as they are."""
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels


class Method(Protocol):
    """`choose` returns the method's numbers, with which `probabilities` (n, k) and `module` are asked for."""

    def fit(self, network: Network, images: Tensor, train: Seen | None, labels: Tensor) -> None: ...
    def choose(self, validation: Seen, labels: Tensor, noise: Seen) -> Chosen: ...
    def probabilities(self, seen: Seen, chosen: Chosen, seed: int) -> Tensor: ...
    def module(self, chosen: Chosen) -> nn.Module: ...


class Plain:
    """The network as it was trained."""

    def fit(self, network: Network, images: Tensor, train: Seen | None, labels: Tensor) -> None:
        self.network = network

    def choose(self, validation: Seen, labels: Tensor, noise: Seen) -> Chosen:
        return {}

    @torch.no_grad()
    def probabilities(self, seen: Seen, chosen: Chosen, seed: int) -> Tensor:
        return probabilities(self.network.head(seen.features))

    def module(self, chosen: Chosen) -> nn.Module:
        return self.network.whole


class Temperature(Plain):
    """Temperature scaling."""

    def choose(self, validation: Seen, labels: Tensor, noise: Seen) -> Chosen:
        scaled = bb.TemperatureScaling(self.network.head)
        with at_the_edge():
            scaled.fit([(validation.features, labels)], progress=False)
        return {"temperature": scaled.temperature}

    @torch.no_grad()
    def probabilities(self, seen: Seen, chosen: Chosen, seed: int) -> Tensor:
        logits = self.network.head(seen.features)
        if logits.shape[1] > 1:  # the largest becomes 0 first: dividing it by a small T could overflow
            logits = logits - logits.amax(1, keepdim=True)
        return probabilities(logits / chosen["temperature"])

    def module(self, chosen: Chosen) -> nn.Module:
        scaled = bb.TemperatureScaling(self.network.whole)
        scaled.temperature = chosen["temperature"]
        return scaled


class LastLayer:
    """A Laplace approximation of the last layer, on features."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def fit(self, network: Network, images: Tensor, train: Seen | None, labels: Tensor) -> None:
        assert train is not None
        self.network = network
        self.bayes = bb.Laplace(network.head, **self.options)
        self.bayes.fit(Batches(train.features, labels, 5000), progress=False)

    def choose(self, validation: Seen, labels: Tensor, noise: Seen) -> Chosen:
        return tuned(self.bayes, [(validation.features, labels)], noise.features)

    def probabilities(self, seen: Seen, chosen: Chosen, seed: int) -> Tensor:
        generator = torch.Generator(seen.features.device).manual_seed(seed)
        return set_to(self.bayes, chosen).predict_proba(seen.features, generator=generator)

    def module(self, chosen: Chosen) -> nn.Module:
        return nn.Sequential(self.network.backbone, set_to(self.bayes, chosen))


class WholeNetwork:
    """A Laplace approximation that needs the images themselves: of all layers, or with a residual."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def fit(self, network: Network, images: Tensor, train: Seen | None, labels: Tensor) -> None:
        self.bayes = bb.Laplace(network.whole, **self.options)
        self.bayes.fit(network.batches(images, labels), progress=False)

    def choose(self, validation: Seen, labels: Tensor, noise: Seen) -> Chosen:
        return tuned(self.bayes, Batches(validation.images, labels), list(torch.split(noise.images, ROWS)))

    def probabilities(self, seen: Seen, chosen: Chosen, seed: int) -> Tensor:
        return set_to(self.bayes, chosen).predict_proba(list(torch.split(seen.images, ROWS)))

    def module(self, chosen: Chosen) -> nn.Module:
        return set_to(self.bayes, chosen)


class WithResidual(WholeNetwork):
    """The recommended setting: prior variance and residual by the likelihood alone, without outliers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(residual=True, **options)

    def choose(self, validation: Seen, labels: Tensor, noise: Seen) -> Chosen:
        return tuned(self.bayes, Batches(validation.images, labels), None)


class PlusResidual(WithResidual):
    """The same residual, with the prior variance that the paper's objective chooses without one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.last_layer = LastLayer(**options)

    def fit(self, network: Network, images: Tensor, train: Seen | None, labels: Tensor) -> None:
        super().fit(network, images, train, labels)
        self.last_layer.fit(network, images, train if train is not None else network.see(images), labels)

    def choose(self, validation: Seen, labels: Tensor, noise: Seen) -> Chosen:
        return super().choose(validation, labels, noise) | self.last_layer.choose(validation, labels, noise)


class WeightSamples(WholeNetwork):
    """The average over 20 networks drawn from a posterior over all layers, as the paper's DLA and KFLA.

    What the prior variance does to sampled networks is not what it does to the linearised one, so it is
    chosen on sampled networks too: five of them, from the same random numbers for every candidate, each half
    decade of the paper's range, then each quarter about the best. At most `points` of each set are looked at.
    """

    def __init__(self, points: int, **options: Any) -> None:
        super().__init__(**options)
        self.points = points
        self.drawn: tuple[tuple[float, int, int], dict[str, Tensor]] | None = None

    def fit(self, network: Network, images: Tensor, train: Seen | None, labels: Tensor) -> None:
        super().fit(network, images, train, labels)
        self.network = network

    def choose(self, validation: Seen, labels: Tensor, noise: Seen) -> Chosen:
        inside, labels, outside = validation[: self.points], labels[: self.points], noise[: self.points]

        def cost(exponent: float) -> float:
            p, q = (self._average(seen.images, 10**exponent, 0, TUNING_SAMPLES) for seen in (inside, outside))
            if not (p.isfinite().all() and q.isfinite().all()):  # weights so wide that a network overflows
                return math.inf
            return bb.metrics.nll(p, labels) - WEIGHT * bb.metrics.entropy(q)

        return {"prior_variance": float(10 ** least(cost, EXPONENTS))}

    def probabilities(self, seen: Seen, chosen: Chosen, seed: int) -> Tensor:
        return self._average(seen.images, chosen["prior_variance"], seed, WEIGHT_SAMPLES)

    @torch.no_grad()
    def _average(self, images: Tensor, prior_variance: float, seed: int, samples: int) -> Tensor:
        """Mean probabilities (n, k) over sampled networks, the same ones for every set of images."""
        draws = self._draws(prior_variance, seed, samples)
        total = torch.zeros((), dtype=torch.float64, device=images.device)
        for sample in range(samples):
            weights = {name: values[sample] for name, values in draws.items()}
            parts = [functional_call(self.network.whole, weights, (x,)) for x in torch.split(images, ROWS)]
            total = total + probabilities(torch.cat(parts)).double()
        return (total / samples).float()

    def _draws(self, prior_variance: float, seed: int, samples: int) -> dict[str, Tensor]:
        """Stacked weights; those drawn last are kept, since one table asks for them again and again."""
        key = prior_variance, seed, samples
        if self.drawn is None or self.drawn[0] != key:
            self.drawn = None  # makes room first
            self.bayes.prior_variance = prior_variance
            generator = torch.Generator(self.network.device).manual_seed(seed)
            self.drawn = key, self.bayes.sample(samples, generator=generator)
        return self.drawn[1]

    def module(self, chosen: Chosen) -> nn.Module:
        return Average(self.network.whole, self._draws(chosen["prior_variance"], 0, WEIGHT_SAMPLES))


class Average(nn.Module):
    """The average of drawn networks: log of the mean probabilities (n, k)."""

    def __init__(self, network: nn.Module, draws: dict[str, Tensor]) -> None:
        super().__init__()
        self.network, self.draws = network, draws

    def forward(self, images: Tensor) -> Tensor:
        each = [
            functional_call(self.network, dict(zip(self.draws, weights, strict=True)), (images,))
            for weights in zip(*self.draws.values(), strict=True)
        ]
        total: Tensor = torch.stack(each).log_softmax(2).logsumexp(0)
        return total - math.log(len(each))


def tuned(bayes: bb.Laplace, validation: Any, outliers: Any) -> Chosen:
    """What `tune` chooses by the paper's objective or, where there are no outliers, by the likelihood."""
    objective = "nll" if outliers is None else "ood"
    with at_the_edge():
        bayes.tune(validation, outliers=outliers, objective=objective, weight=WEIGHT, progress=False)
    return numbers_of(bayes)


def numbers_of(bayes: bb.Laplace) -> Chosen:
    """The prior variance and, with a residual, its two numbers."""
    names = ("prior_variance", *(("residual_variance", "residual_threshold") if bayes.residual else ()))
    return {name: getattr(bayes, name) for name in names}


@contextmanager
def at_the_edge() -> Iterator[None]:
    """No warning of a number on the edge of those tried: the tables show the number itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        yield


def set_to(bayes: bb.Laplace, chosen: Chosen) -> bb.Laplace:
    """The same object, with these numbers."""
    for name, value in chosen.items():
        setattr(bayes, name, value)
    return bayes


def least(cost: Callable[[float], float], grid: list[float]) -> float:
    """Where `cost` is least on an even grid, and half a step to both sides of its best within it.

    >>> least(lambda x: (x - 1.3) ** 2, [0.0, 1.0, 2.0, 3.0])
    1.5
    """
    found = {x: cost(x) for x in grid}
    best, half = min(found, key=found.__getitem__), (grid[1] - grid[0]) / 2
    found |= {x: cost(x) for x in (best - half, best + half) if grid[0] < x < grid[-1]}
    return min(found, key=found.__getitem__)


def probabilities(logits: Tensor) -> Tensor:
    """Softmax of k logits (n, k); both classes' probabilities (n, 2) of one logit (n, 1)."""
    if logits.shape[1] == 1:
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)
    return logits.softmax(1)


@dataclass(frozen=True)
class Entry:
    """A method in a table: its title, its column in the paper's tables, and how to make it."""

    title: str
    paper: str | None
    make: Callable[[int], Method]  # given the number of points on which sampled networks are tuned
    ours: bool = False


MULTICLASS = {
    "plain": Entry("Plain network", "MAP", lambda points: Plain()),
    "temperature": Entry("Temperature scaling", "Temp", lambda points: Temperature()),
    "llla": Entry(
        "LLLA (paper's)",
        "LLLA",
        lambda points: LastLayer(structure="kron", variant="paper", predictive="mc"),
    ),
    "dla": Entry(
        "DLA (paper's)",
        "DLA",
        lambda points: WeightSamples(
            points, layers="all", structure="diag", estimate="fisher", variant="paper", predictive="weights"
        ),
    ),
    "kfla": Entry(
        "KFLA (paper's)",
        "KFLA",
        lambda points: WeightSamples(
            points, layers="all", structure="kron", estimate="fisher", variant="paper", predictive="weights"
        ),
    ),
    "ours": Entry("Ours, closed form", None, lambda points: LastLayer(), ours=True),
    "ours-mc": Entry("Ours, Monte Carlo", None, lambda points: LastLayer(predictive="mc"), ours=True),
    "ours-residual": Entry("Ours, NLL and residual", None, lambda points: WithResidual(), ours=True),
    "ours-plus-residual": Entry(
        "Ours, closed form + residual", None, lambda points: PlusResidual(), ours=True
    ),
}
BINARY = {
    "plain": MULTICLASS["plain"],
    "temperature": MULTICLASS["temperature"],
    "llla": Entry("LLLA (paper's)", "LLLA", lambda points: LastLayer()),
    "ours": Entry(
        "Ours, exact integral",
        None,
        lambda points: LastLayer(predictive="quadrature"),
        ours=True,
    ),
    "ours-residual": MULTICLASS["ours-residual"],
    "ours-plus-residual": Entry(
        "Ours, exact integral + residual",
        None,
        lambda points: PlusResidual(predictive="quadrature"),
        ours=True,
    ),
}
