"""The ReLU-GP residual: a variance that grows with the distance from the data."""

from bitbayes.residual.kernel import InputMoments, Kernel
from bitbayes.residual.levels import Residual, as_rows, levels, measurable, moments_of

__all__ = [
    "InputMoments",
    "Kernel",
    "Residual",
    "as_rows",
    "levels",
    "measurable",
    "moments_of",
]
