"""The network as it was trained, and temperature scaling."""

import torch
from torch import Tensor, nn

import bitbayes as bb
from paper.methods.base import (
    Hyperparameters,
    Network,
    Points,
    Rated,
    ignore_edge_warnings,
    probabilities,
    rate_by_probabilities,
)


class Plain:
    """The network as it was trained."""

    tuned_once = False

    def fit(self, network: Network, images: Tensor, train: Points, labels: Tensor) -> None:
        self.network = network

    def tune(self, test: Points, rows: Tensor, noise: Points) -> Hyperparameters:
        return {}

    @torch.no_grad()
    def rate(self, points: Points, chosen: Hyperparameters, seed: int) -> Rated:
        return rate_by_probabilities(probabilities(self.network.head(points.features)))

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        return self.network.whole


class Temperature(Plain):
    """Temperature scaling."""

    def tune(self, test: Points, rows: Tensor, noise: Points) -> Hyperparameters:
        assert test.labels is not None
        scaled = bb.TemperatureScaling(self.network.head)
        with ignore_edge_warnings():
            scaled.fit([(test.features[rows], test.labels[rows])], progress=False)
        return {"temperature": scaled.temperature}

    @torch.no_grad()
    def rate(self, points: Points, chosen: Hyperparameters, seed: int) -> Rated:
        logits = self.network.head(points.features)
        if logits.shape[1] > 1:  # makes the largest logit 0: dividing it by a small T could overflow
            logits = logits - logits.amax(1, keepdim=True)
        return rate_by_probabilities(probabilities(logits / chosen["temperature"]))

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        scaled = bb.TemperatureScaling(self.network.whole)
        scaled.temperature = chosen["temperature"]
        return scaled
