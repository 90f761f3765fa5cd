"""What happens far from the data: limits, bounds and certificates along rays δ·x."""

from bitbayes.infinity.bound import PriorLimits, bound, prior_limits
from bitbayes.infinity.certify import ApproximateCertificate, Certificate, certify
from bitbayes.infinity.hidden import LevelMoments, Levels, checked_levels
from bitbayes.infinity.limit import ApproximateLimit, Limit, limit
from bitbayes.infinity.network_bound import network_bound
from bitbayes.infinity.network_path import ExactNetwork, network_paths
from bitbayes.infinity.path import Path, last_layer_paths
from bitbayes.infinity.ray import Affine, FinalPiece, final_piece, unit_rays
from bitbayes.infinity.ray_residual import residual_paths
from bitbayes.infinity.residual import InputMoments, Residual

__all__ = [
    "Affine",
    "ApproximateCertificate",
    "ApproximateLimit",
    "Certificate",
    "ExactNetwork",
    "FinalPiece",
    "InputMoments",
    "LevelMoments",
    "Levels",
    "Limit",
    "Path",
    "PriorLimits",
    "Residual",
    "bound",
    "certify",
    "checked_levels",
    "final_piece",
    "last_layer_paths",
    "limit",
    "network_bound",
    "network_paths",
    "prior_limits",
    "residual_paths",
    "unit_rays",
]
