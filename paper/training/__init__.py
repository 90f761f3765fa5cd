"""Training by the paper's recipes, with one of three losses: plain, outlier exposure, or ACET.

A Laplace approximation needs no particular training. This package trains the paper's own networks.
"""

from paper.training.augment import augmented
from paper.training.cache import trained
from paper.training.objectives import OBJECTIVES, confident_neighbours
from paper.training.recipe import CIFAR, MNIST, SVHN, Recipe
from paper.training.train import train

__all__ = [
    "CIFAR",
    "MNIST",
    "OBJECTIVES",
    "SVHN",
    "Recipe",
    "augmented",
    "confident_neighbours",
    "train",
    "trained",
]
