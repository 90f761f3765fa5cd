"""bitbayes without any option: `tune` chooses prior variance, temperature and residual."""

from dataclasses import asdict
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

import bitbayes as bb
from paper.methods.base import (
    BatchLoader,
    Hyperparameters,
    Network,
    Points,
    Rated,
    rate_by_probabilities,
    set_numbers,
)


class Default:
    """`bb.Laplace(model).fit(train).tune(validation)`. Every set of images passes the network once."""

    tuned_once = False
    options: ClassVar[dict[str, Any]] = {}  # of `bb.Laplace`

    def fit(self, network: Network, images: Tensor, train: Points, labels: Tensor) -> None:
        self.bayes = bb.Laplace(network.whole).fit(BatchLoader(images, labels), progress=False)
        # Sets that are no longer in use are forgotten.
        self.passed: WeakKeyDictionary[Points, bb.PassedPoints] = WeakKeyDictionary()

    def tune(self, test: Points, rows: Tensor, noise: Points) -> Hyperparameters:
        return tune_passed(self._pass(test).select(rows))

    def rate(self, points: Points, chosen: Hyperparameters, seed: int) -> Rated:
        return rate_passed(self._pass(points), chosen)

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        return set_numbers(self.bayes, chosen)

    def _pass(self, points: Points) -> bb.PassedPoints:
        if points not in self.passed:
            self.passed[points] = pass_images(self.bayes, points.images, points.labels)
        return self.passed[points]


def pass_images(bayes: bb.Laplace, images: Tensor, labels: Tensor | None = None) -> bb.PassedPoints:
    """Pass the images through the network. Only those that are tuned on need labels."""
    if labels is None:
        labels = torch.zeros(1, dtype=torch.long, device=images.device).expand(len(images))
    return bb.PassedPoints.of(bayes, BatchLoader(images, labels))


def tune_passed(points: bb.PassedPoints) -> Hyperparameters:
    """Return the numbers that `tune` chooses on these points."""
    return asdict(points.tune())


def rate_passed(points: bb.PassedPoints, chosen: Hyperparameters) -> Rated:
    """Rate the points with these numbers."""
    probs, score = points.predict(bb.Settings(**chosen))
    return rate_by_probabilities(probs, score=score)
