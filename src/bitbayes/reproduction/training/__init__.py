"""Training by the paper's recipes, with one of three losses: plain, outlier exposure, or ACET.

A Laplace approximation needs no particular training. This package trains the paper's own networks.
"""

from bitbayes.reproduction.training.augment import augmented
from bitbayes.reproduction.training.cache import trained
from bitbayes.reproduction.training.objectives import OBJECTIVES, confident_neighbours
from bitbayes.reproduction.training.recipe import CIFAR, MNIST, SVHN, Recipe
from bitbayes.reproduction.training.train import train

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
