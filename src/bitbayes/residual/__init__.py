"""The residual: a variance that grows with the distance from the training data."""

from bitbayes.model.head.levels import INPUT
from bitbayes.residual.distances import Distance, coordinates, is_finite, norm_power
from bitbayes.residual.residual import Residual, are_vectors, as_rows, measurable
from bitbayes.residual.sums import LARGEST_WIDTH, LevelSums

__all__ = [
    "INPUT",
    "LARGEST_WIDTH",
    "Distance",
    "LevelSums",
    "Residual",
    "are_vectors",
    "as_rows",
    "coordinates",
    "is_finite",
    "measurable",
    "norm_power",
]
