"""What happens far from the data: limits, bounds and certificates along rays δ·x."""

from bitbayes.infinity.bound import PriorLimits, bound, prior_limits
from bitbayes.infinity.certify import Certificate, certify
from bitbayes.infinity.limit import Limit, limit
from bitbayes.infinity.path import Path, last_layer_paths
from bitbayes.infinity.ray import Affine, FinalPiece, final_piece

__all__ = [
    "Affine",
    "Certificate",
    "FinalPiece",
    "Limit",
    "Path",
    "PriorLimits",
    "bound",
    "certify",
    "final_piece",
    "last_layer_paths",
    "limit",
    "prior_limits",
]
