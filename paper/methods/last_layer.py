"""Laplace approximations of the last layer, fitted to features, with the prior of the paper's objective."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

import bitbayes as bb
from paper.methods.base import (
    OUTLIER_WEIGHT,
    BatchLoader,
    Hyperparameters,
    Network,
    Points,
    Rated,
    ignore_edge_warnings,
    rate_by_probabilities,
)

FEATURES_PER_BATCH = 5000


def points_of_a_running_mean(points: int, batch_size: int = 128, keep: float = 0.95) -> float:
    """How many points count after one pass of H ← 0.95·H + 0.05·(the sum over a batch), from H = 0 on.

    The paper's code has this for two classes.

    >>> [round(points_of_a_running_mean(points)) for points in (11_982, 1_000)]
    [124, 42]
    """
    total = 0.0
    for start in range(0, points, batch_size):
        total = keep * total + (1 - keep) * min(batch_size, points - start)
    return total


class LastLayer:
    """A Laplace approximation of the last layer without a residual.

    Args:
        own_score: whether outliers are told by `bayes.score`, or by the largest probability, as in the paper.
        penalty: what the objective asks of noise; see `bb.Laplace.tune`.
        weight: of this penalty.
        curvature_points: takes the number of points and returns how many of them the curvature counts. None:
            all, as it should be.
        options: those of `bb.Laplace`.
    """

    tuned_once = False

    def __init__(
        self,
        *,
        own_score: bool = True,
        penalty: Literal["entropy", "uniform"] = "entropy",
        weight: float = OUTLIER_WEIGHT,
        curvature_points: Callable[[int], float] | None = None,
        **options: Any,
    ) -> None:
        self.curvature_points = curvature_points
        self.own_score, self.options = own_score, {"residual": False, **options}
        self.objective: dict[str, Any] = {"objective": "ood", "penalty": penalty, "weight": weight}

    def fit(self, network: Network, images: Tensor, train: Points, labels: Tensor) -> None:
        self.network = network
        self.bayes = bb.Laplace(network.head, **self.options)
        loader = BatchLoader(train.features, labels, FEATURES_PER_BATCH)
        if self.curvature_points is None:
            self.bayes.fit(loader, progress=False)
        else:
            weight = self.curvature_points(len(labels)) / len(labels)
            weighted = [(x, y, torch.full((len(x),), weight, device=x.device)) for x, y in loader]
            self.bayes.fit(weighted, weighted=True, progress=False)

    def tune(self, test: Points, rows: Tensor, noise: Points) -> Hyperparameters:
        assert test.labels is not None
        validation = [(test.features[rows], test.labels[rows])]
        with ignore_edge_warnings():
            self.bayes.tune(validation, outliers=noise.features, **self.objective, progress=False)
        return {"prior_variance": self.bayes.prior_variance}

    def rate(self, points: Points, chosen: Hyperparameters, seed: int) -> Rated:
        self.bayes.prior_variance = chosen["prior_variance"]
        generator = torch.Generator(points.features.device).manual_seed(seed)
        probs = self.bayes.predict_proba(points.features, generator=generator)
        own = {"score": self.bayes.score(points.features)} if self.own_score else {}
        return rate_by_probabilities(probs, **own)

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        self.bayes.prior_variance = chosen["prior_variance"]
        return nn.Sequential(self.network.backbone, self.bayes)
