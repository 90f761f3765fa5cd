"""bitbayes: honest confidence for any trained classifier, after training, in one pass over the data."""

from bitbayes import data, metrics, networks, outliers, paper, training
from bitbayes.baselines import TemperatureScaling
from bitbayes.errors import BitbayesError
from bitbayes.laplace import Laplace
from bitbayes.logits import LogitGaussian

__version__ = "0.1.0"

__all__ = [
    "BitbayesError",
    "Laplace",
    "LogitGaussian",
    "TemperatureScaling",
    "data",
    "metrics",
    "networks",
    "outliers",
    "paper",
    "training",
]
