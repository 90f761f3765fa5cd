"""What happens far from the data: limits, bounds and certificates along rays δ·x."""

from bitbayes.rays.all_layers import ExactNetwork, network_paths
from bitbayes.rays.all_layers_bound import network_bound
from bitbayes.rays.bound import PriorLimits, bound, prior_limits
from bitbayes.rays.certify import ApproximateCertificate, Certificate, certify
from bitbayes.rays.final_region import Affine, FinalRegion, final_region, unit_rays
from bitbayes.rays.limit import ApproximateLimit, Limit, limit
from bitbayes.rays.ray_gaussian import Path, last_layer_paths
from bitbayes.rays.ray_residual import residual_paths
from bitbayes.residual.kernel import InputMoments, Residual
from bitbayes.residual.levels import LevelMoments, Levels, checked_levels

__all__ = [
    "Affine",
    "ApproximateCertificate",
    "ApproximateLimit",
    "Certificate",
    "ExactNetwork",
    "FinalRegion",
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
    "final_region",
    "last_layer_paths",
    "limit",
    "network_bound",
    "network_paths",
    "prior_limits",
    "residual_paths",
    "unit_rays",
]
