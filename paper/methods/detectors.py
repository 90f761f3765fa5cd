"""Detectors of outliers that look at the last layer's features and logits, and give no probabilities."""

from torch import Tensor, nn

from bitbayes.baselines.detectors import DETECTORS
from bitbayes.errors import ArgumentError, DataError
from paper.methods.base import Hyperparameters, Network, Points, Rated


class Detector:
    """One of `bitbayes.baselines.detectors`. It has no hyperparameters to be chosen."""

    tuned_once = True

    def __init__(self, name: str) -> None:
        self.name = name

    def fit(self, network: Network, images: Tensor, train: Points, labels: Tensor) -> None:
        head = network.head
        try:
            self.fitted = DETECTORS[self.name].fit(train.features, labels, head.weight, head.bias)
        except DataError as error:  # so that a table is made without it
            raise ArgumentError(str(error)) from error

    def tune(self, test: Points, rows: Tensor, noise: Points) -> Hyperparameters:
        return {}

    def rate(self, points: Points, chosen: Hyperparameters, seed: int) -> Rated:
        return Rated(None, {self.name: self.fitted.score(points.features)})

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        raise NotImplementedError("a detector gives no logits")
