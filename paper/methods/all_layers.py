"""Laplace approximations of all layers: sampled networks, as in the paper, and the linearised network."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

import bitbayes as bb
from paper.methods.base import (
    IMAGES_PER_BATCH,
    OUTLIER_WEIGHT,
    AllLayersFit,
    BatchLoader,
    Hyperparameters,
    Network,
    Points,
    Rated,
    fast_layout,
    ignore_edge_warnings,
    probabilities,
    rate_by_probabilities,
    set_numbers,
)

SAMPLED_NETWORKS, SAMPLED_NETWORKS_IN_TUNING = 20, 5
# The paper's range of prior variances, for sampled networks.
LOG10_PRIOR_VARIANCES = [-6 + i / 2 for i in range(13)]
# Of the linearised network: the most points of a set of outliers, of validation points and of noise. A point
# takes as long as a hundred forward passes: k − 1 passes back, or 20 draws where there are many classes.
LINEARISED_POINTS = 1000


class SampledNetworks:
    """The average over 20 networks drawn from a posterior over all layers, as the paper's DLA and KFLA.

    The best prior variance of sampled networks is not that of the linearised network, so it is chosen on
    sampled networks too. There are five of them, made from the same random numbers for every candidate. The
    candidates are each half decade of the paper's range, and then each quarter decade around the best. Tuning
    uses at most `points` points of each set. On a GPU the networks run in bfloat16.
    """

    tuned_once = True

    def __init__(self, points: int, **options: Any) -> None:
        self.points, self.options = points, options
        self.drawn: tuple[tuple[float, int, int], dict[str, Tensor]] | None = None

    def fit(self, network: Network, images: Tensor, train: Points, labels: Tensor) -> None:
        self.network = network
        self.fitted = fit_all_layers(network, images, labels, residual=False, **self.options)
        self.bayes = self.fitted.bayes

    def tune(self, test: Points, rows: Tensor, noise: Points) -> Hyperparameters:
        validation, noise = test[rows[: self.points]], noise[: self.points]
        labels = validation.labels
        assert labels is not None

        def cost(exponent: float) -> float:
            p, q = (
                self._average(inputs.images, 10**exponent, 0, SAMPLED_NETWORKS_IN_TUNING)
                for inputs in (validation, noise)
            )
            if not (p.isfinite().all() and q.isfinite().all()):  # a large variance makes a network overflow
                return math.inf
            return bb.metrics.nll(p, labels) - OUTLIER_WEIGHT * bb.metrics.entropy(q)

        return {"prior_variance": float(10 ** minimise_on_grid(cost, LOG10_PRIOR_VARIANCES))}

    def rate(self, points: Points, chosen: Hyperparameters, seed: int) -> Rated:
        probs = self._average(points.images, chosen["prior_variance"], seed, SAMPLED_NETWORKS)
        return rate_by_probabilities(probs)

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
        images = fast_layout(images)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            outputs = [functional_call(self.network, weights, (images,)) for weights in networks]
        stacked = torch.stack(outputs).float()
        average = stacked.softmax(2).mean(0).clamp_min(torch.finfo(stacked.dtype).tiny).log()
        return torch.where(stacked.isfinite().all(), average, torch.nan)


class Linearised:
    """A posterior over all layers, with the network linearised in its weights.

    Args:
        objective: that of `tune`: "ood", the paper's, or "calibrated", the default.
        options: those of `bb.Laplace`.
    """

    tuned_once = True

    def __init__(self, objective: Literal["ood", "calibrated"], **options: Any) -> None:
        self.objective, self.options = objective, options

    def fit(self, network: Network, images: Tensor, train: Points, labels: Tensor) -> None:
        self.fitted = fit_all_layers(network, images, labels, **self.options)
        self.bayes = self.fitted.bayes

    def tune(self, test: Points, rows: Tensor, noise: Points) -> Hyperparameters:
        validation, noise = test[rows[:LINEARISED_POINTS]], noise[:LINEARISED_POINTS]
        assert validation.labels is not None
        with ignore_edge_warnings(), fast_products():
            self.bayes.tune(
                BatchLoader(validation.images, validation.labels),
                objective=self.objective,
                outliers=noise.batches() if self.objective == "ood" else None,
                weight=OUTLIER_WEIGHT,
                progress=False,
            )
        return asdict(self.bayes.settings)

    def rate(self, points: Points, chosen: Hyperparameters, seed: int) -> Rated:
        """Rate the points; of a set without labels, the first thousand."""
        bayes = self.as_module(chosen)
        batches = points.batches() if points.labels is not None else points[:LINEARISED_POINTS].batches()
        with torch.no_grad(), fast_products():
            probs, score = (each.to(points.images.device) for each in bayes.predict_and_score(batches))
        return rate_by_probabilities(probs, **({"score": score} if self.objective == "calibrated" else {}))

    def as_module(self, chosen: Hyperparameters) -> bb.Laplace:
        return set_numbers(self.bayes, chosen)


def fit_all_layers(network: Network, images: Tensor, labels: Tensor, **options: Any) -> AllLayersFit:
    """Return a fitted posterior over all layers. Methods with the same options share it."""
    key = tuple(sorted(options.items()))
    if key not in network.all_layers:
        bayes = bb.Laplace(network.whole, layers="all", **options)
        network.synchronize()
        started = time.perf_counter()
        with fast_products():
            bayes.fit(BatchLoader(images, labels), progress=False)
        network.synchronize()
        network.all_layers[key] = AllLayersFit(bayes, time.perf_counter() - started)
    return network.all_layers[key]


@contextmanager
def fast_products() -> Iterator[None]:
    """On a GPU, multiply matrices in TensorFloat-32, as convolutions are by default: to 3 digits."""
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = True
    try:
        yield
    finally:
        products.allow_tf32 = before


def minimise_on_grid(cost: Callable[[float], float], grid: list[float]) -> float:
    """Return the best point of an even grid, or a point half a step beside it if that is better.

    >>> minimise_on_grid(lambda x: (x - 1.3) ** 2, [0.0, 1.0, 2.0, 3.0])
    1.5
    """
    costs = {x: cost(x) for x in grid}
    best, half = min(costs, key=costs.__getitem__), (grid[1] - grid[0]) / 2
    costs |= {x: cost(x) for x in (best - half, best + half) if grid[0] < x < grid[-1]}
    return min(costs, key=costs.__getitem__)
