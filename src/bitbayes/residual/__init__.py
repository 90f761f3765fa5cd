"""The residual: a variance that grows with the distance from the training data."""

from bitbayes.model.head.levels import CLASSES, INPUT
from bitbayes.residual.distances import ClassDistance, Distance, is_finite
from bitbayes.residual.residual import Residual, are_vectors, as_rows, measurable
from bitbayes.residual.sums import GPU_STEP_NUMBERS, LARGEST_CLASSES, LARGEST_WIDTH, STEP_NUMBERS, LevelSums

__all__ = [
    "CLASSES",
    "GPU_STEP_NUMBERS",
    "INPUT",
    "LARGEST_CLASSES",
    "LARGEST_WIDTH",
    "STEP_NUMBERS",
    "ClassDistance",
    "Distance",
    "LevelSums",
    "Residual",
    "are_vectors",
    "as_rows",
    "is_finite",
    "measurable",
]
