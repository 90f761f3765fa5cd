"""Training by the paper's recipes: plain, outlier exposure, and ACET.

The networks need no particular training to be made a bit Bayesian; this is here to train the paper's.
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
