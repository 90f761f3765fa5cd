"""One pass over data → the loss's curvature in the head's weights, a sum over points with no prior in it.

Each structure is a frozen value with the same two functions: `of(features, logits, likelihood)` for some
points, and `a + b` for the points of both. Features come with the bias's constant 1 folded in: φ̃ (n, D).
`NetworkCurvature` is the same for all layers at once.
"""

from bitbayes.curvature.all_layers import (
    NETWORK_STRUCTURES,
    NetworkCurvature,
    check_width,
    network_sums,
    sum_names,
)
from bitbayes.curvature.diag import DiagCurvature
from bitbayes.curvature.full import FullCurvature
from bitbayes.curvature.isotropic import NoCurvature
from bitbayes.curvature.kron import KronCurvature

Curvature = FullCurvature | KronCurvature | DiagCurvature | NoCurvature
STRUCTURES: dict[str, type[Curvature]] = {
    "full": FullCurvature,
    "kron": KronCurvature,
    "diag": DiagCurvature,
    "isotropic": NoCurvature,
}

__all__ = [
    "NETWORK_STRUCTURES",
    "STRUCTURES",
    "Curvature",
    "DiagCurvature",
    "FullCurvature",
    "KronCurvature",
    "NetworkCurvature",
    "NoCurvature",
    "check_width",
    "network_sums",
    "sum_names",
]
