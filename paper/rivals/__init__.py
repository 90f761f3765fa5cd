"""What else people use: an ensemble, MC dropout, SWAG and laplace-torch, each as its authors describe it."""

from paper.rivals.base import Predicted, Predictor, average, choose_temperature, joined, predict_in_parts
from paper.rivals.dropout import dropout_network, mc_dropout
from paper.rivals.laplace_torch import LaplaceTorch
from paper.rivals.swag import swag

__all__ = [
    "LaplaceTorch",
    "Predicted",
    "Predictor",
    "average",
    "choose_temperature",
    "dropout_network",
    "joined",
    "mc_dropout",
    "predict_in_parts",
    "swag",
]
