"""What happens far from the data: limits, bounds and certificates along rays δ·x."""

from bitbayes.rays.all_layers import ExactNetwork, all_layers_rays
from bitbayes.rays.all_layers_bound import all_layers_bound
from bitbayes.rays.bound import PriorLimits, bound, prior_limits
from bitbayes.rays.certify import ApproximateCertificate, Certificate, certify
from bitbayes.rays.final_region import Affine, FinalRegion, final_region, unit_rays
from bitbayes.rays.limit import ApproximateLimit, Limit, limit
from bitbayes.rays.ray_gaussian import RayGaussian, last_layer_rays
from bitbayes.rays.ray_residual import with_residual
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
    "PriorLimits",
    "RayGaussian",
    "Residual",
    "all_layers_bound",
    "all_layers_rays",
    "bound",
    "certify",
    "checked_levels",
    "final_region",
    "last_layer_rays",
    "limit",
    "prior_limits",
    "unit_rays",
    "with_residual",
]
