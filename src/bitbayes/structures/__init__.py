"""Structures: how much of the curvature H is stored, and the Gaussian over weights that follows from it.

Each structure is one file with two frozen values side by side. The *curvature* is a sum over data with no
prior in it. The *posterior* is its decomposition. The prior's precision τ = 1/σ₀² is
an argument of each function, so that another prior costs no decomposition. The functions, in this order:

- curvature: `of_features` (the last layer, from a forward pass), `of_jacobian` (any layer, from derivatives),
  `a + b`, and `head_gaussian`, `layer_gaussian` to decompose it.
- posterior: `precisions`, `to_weights`, from which follow `draw`, `log_determinant`, `largest_precision`; for
  the last layer `coordinates` and `covariance` (of the logits), for any layer `rotate`.
"""

from bitbayes.structures.base import CURVATURES, Curvature, Precision, WeightGaussian, eigen
from bitbayes.structures.diag import DiagCurvature, DiagGaussian
from bitbayes.structures.full import FullCurvature, check_affordable
from bitbayes.structures.grams import gram, gram_root
from bitbayes.structures.isotropic import IsotropicGaussian, NoCurvature
from bitbayes.structures.kron import KronCurvature, KronGaussian
from bitbayes.structures.lowrank import LowRankCurvature
from bitbayes.structures.network import WHOLE_NETWORK, NetworkGaussian, layer_curvatures

CURVATURES |= {
    kind.structure: kind
    for kind in (FullCurvature, KronCurvature, DiagCurvature, NoCurvature, LowRankCurvature)
}

__all__ = [
    "CURVATURES",
    "WHOLE_NETWORK",
    "Curvature",
    "DiagCurvature",
    "DiagGaussian",
    "FullCurvature",
    "IsotropicGaussian",
    "KronCurvature",
    "KronGaussian",
    "LowRankCurvature",
    "NetworkGaussian",
    "NoCurvature",
    "Precision",
    "WeightGaussian",
    "check_affordable",
    "eigen",
    "gram",
    "gram_root",
    "layer_curvatures",
]
