"""The default without some of its parts: what does each of them buy?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import bitbayes as bb
from bitbayes.structures import CURVATURES, IsotropicGaussian, NoCurvature
from paper.methods.base import BatchLoader, Network, ignore_edge_warnings


@dataclass(frozen=True)
class NoPosterior(NoCurvature):
    """H = ∞: the weights are known, and only the residual is left."""

    structure = "no-posterior"

    def head_gaussian(self, head: Any, differences: Tensor | None) -> NoGaussian:
        return NoGaussian(torch.zeros(head.outputs, head.width, dtype=torch.float64))


@dataclass(frozen=True)
class NoGaussian(IsotropicGaussian):
    """Σ = 0 for every prior."""

    def coordinates(self, features: Tensor) -> Tensor:
        return torch.zeros_like(super().coordinates(features))


CURVATURES[NoPosterior.structure] = NoPosterior


@dataclass(frozen=True)
class Part:
    """A title, the options of `bb.Laplace`, the objective of `tune`, and what is done to the labels."""

    title: str
    options: dict[str, Any]
    objective: Any = "calibrated"
    relabel: Callable[[Tensor], Tensor] | None = None

    def fit(self, network: Network, train: tuple[Tensor, Tensor], validation: BatchLoader) -> bb.Laplace:
        images, labels = train
        labels = labels if self.relabel is None else self.relabel(labels)
        with ignore_edge_warnings():
            bayes = bb.Laplace(network.whole, **self.options)
            bayes.fit(BatchLoader(images, labels), progress=False)
            return bayes.tune(validation, objective=self.objective, progress=False)


def shuffled_labels(labels: Tensor) -> Tensor:
    """The labels in a random order."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return labels[order.to(labels.device)]


PARTS = {
    "weak-prior": Part(
        "Temperature with the weak prior", {"structure": NoPosterior.structure, "residual": False}
    ),
    "distances": Part("Temperature and distances", {"structure": NoPosterior.structure}),
    "posterior": Part("Posterior alone", {"residual": False}, "nll"),
    "posterior-temperature": Part("Posterior and temperature", {"residual": False}),
    "identity": Part("All, the curvature replaced by the identity", {"structure": "isotropic"}),
    "shuffled": Part("All, fitted with labels in a random order", {}, relabel=shuffled_labels),
}
