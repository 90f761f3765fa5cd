"""Confidence far from the data, along rays δ·x: limits, bounds and certificates."""

from bitbayes.rays.all_layers import ExactNetwork, all_layers_rays
from bitbayes.rays.all_layers_bounds import all_layers_bound
from bitbayes.rays.bounds import FORMS, BoundRequest, bound, bound_with_residual, prior_limits, round_up
from bitbayes.rays.certificates import (
    ApproximateCertificate,
    ApproximateValueCertificate,
    Certificate,
    ValueCertificate,
    certify,
)
from bitbayes.rays.final_regions import final_region, unit_rays
from bitbayes.rays.limits import ApproximateLimit, Limit, limit
from bitbayes.rays.ray_gaussian import ExactHead, RayGaussian, last_layer_rays
from bitbayes.rays.ray_residual import with_residual
from bitbayes.rays.sweeps import beyond
from bitbayes.rays.value_limits import ApproximateValueLimit, ValueLimit, value_limit

__all__ = [
    "FORMS",
    "ApproximateCertificate",
    "ApproximateLimit",
    "ApproximateValueCertificate",
    "ApproximateValueLimit",
    "BoundRequest",
    "Certificate",
    "ExactHead",
    "ExactNetwork",
    "Limit",
    "RayGaussian",
    "ValueCertificate",
    "ValueLimit",
    "all_layers_bound",
    "all_layers_rays",
    "beyond",
    "bound",
    "bound_with_residual",
    "certify",
    "final_region",
    "last_layer_rays",
    "limit",
    "prior_limits",
    "round_up",
    "unit_rays",
    "value_limit",
    "with_residual",
]
