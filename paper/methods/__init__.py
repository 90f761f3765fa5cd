"""The methods that the tables compare, each as written in the paper or as bitbayes does it.

A method is fitted once to a trained network. In each trial it chooses its hyperparameters (a temperature, a
prior variance, those of the residual) on validation data, and predicts with them. Methods of the last layer
need only features, which are computed once for each set of images and serve every method and trial.
"""

from paper.methods.all_layers import Average, Linearised, SampledNetworks
from paper.methods.base import (
    IMAGES_PER_BATCH,
    LARGEST_PROBABILITY,
    BatchLoader,
    Hyperparameters,
    Method,
    Network,
    Points,
    Rated,
    ignore_edge_warnings,
    probabilities,
    rate_by_probabilities,
    set_numbers,
)
from paper.methods.default import Default, pass_images, rate_passed, tune_passed
from paper.methods.detectors import Detector
from paper.methods.entries import BINARY, LINEARISED, MULTICLASS, MethodEntry
from paper.methods.last_layer import LastLayer
from paper.methods.plain import Plain, Temperature

__all__ = [
    "BINARY",
    "IMAGES_PER_BATCH",
    "LARGEST_PROBABILITY",
    "LINEARISED",
    "MULTICLASS",
    "Average",
    "BatchLoader",
    "Default",
    "Detector",
    "Hyperparameters",
    "LastLayer",
    "Linearised",
    "Method",
    "MethodEntry",
    "Network",
    "Plain",
    "Points",
    "Rated",
    "SampledNetworks",
    "Temperature",
    "ignore_edge_warnings",
    "pass_images",
    "probabilities",
    "rate_by_probabilities",
    "rate_passed",
    "set_numbers",
    "tune_passed",
]
