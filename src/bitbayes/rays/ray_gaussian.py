"""The Gaussian over logits along a ray, from infinity (u = 0) to alpha (u = 1).

For δ ≥ alpha the features are φ̃(δ) = φ̃(α) + (δ − α)s. Up to a factor, which is left to the Gaussian's
`scale`, they lie on the segment (1 − u)·s/|s| + u·φ̃(α)/|φ̃(α)|, whose ends are the direction at infinity and
the point at alpha. Along it mean/scale is affine in u, and 1/scale² plus a variance in units of scale² is a
quadratic in u. Limits and certificates need no more than that: a posterior over all layers, whose Jacobian
is affine in δ from alpha on too, only has to offer such paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.logits import LogitGaussian, rescale
from bitbayes.model import Head
from bitbayes.prior import Prior
from bitbayes.rays.final_region import Affine, FinalRegion, final_region
from bitbayes.structures import WeightGaussian

if TYPE_CHECKING:
    from bitbayes.rays.ray_residual import RayResidual

# A scale whose 1/scale² vanishes beside any variance of features of size 1, and is no 0 to divide by.
INFINITE = 1e150
# Numbers that the pairs of classes of one path's rows may take.
CHUNK = 2**20


class RayGaussian(NamedTuple):
    """alpha (n,) of n rays, and `at(u)`: the Gaussian over their logits at u ∈ [0, 1], in float64.

    Its scale goes from `far_scale` to `near_scale`, (n,) each, its inverse being affine in u. `delta(row, u)`
    is the δ of points (c,) on the paths of the given rows. The residual, if any, comes on top of `at`.
    """

    alpha: Tensor
    at: Callable[[float], LogitGaussian]
    far_scale: Tensor
    near_scale: Tensor
    delta: Callable[[Tensor, Tensor], Tensor]
    residual: RayResidual | None = None


def last_layer_rays(
    model: nn.Module,
    head: Head,
    posterior: WeightGaussian,
    prior: Prior,
    x: Tensor,
    *,
    settle: bool,
    tolerance: float,
) -> Iterator[RayGaussian]:
    """Paths for the rows of x, some rows at a time, of a posterior over the last layer.

    Without `settle` alpha is not looked for, and only the end at infinity means anything.
    """
    piece = final_region(model, head, x, settle=settle, tolerance=tolerance)
    if not settle:
        piece = _finite(piece, model, head, x, tolerance)
    posterior = posterior.to(piece.alpha.device, torch.float64)
    tau = prior.precision(head.name, torch.float64)
    size = max(1, CHUNK // head.outputs**2)
    for start in range(0, len(piece.alpha), size):
        yield _path(piece.rows(slice(start, start + size)), posterior, tau, head.bias)


def _finite(piece: FinalRegion, model: nn.Module, head: Head, x: Tensor, tolerance: float) -> FinalRegion:
    """The slopes alone, and the whole piece of those rays whose features stop growing."""
    still = ~piece.features.slope.any(1)
    pieces = [Affine(each.slope, torch.zeros_like(each.slope)) for each in piece[:2]]
    alpha = torch.zeros_like(piece.alpha)
    if bool(still.any()):
        whole = final_region(model, head, x[still.to(x.device)], tolerance=tolerance)
        for each, one in zip(pieces, whole[:2], strict=True):
            each.intercept[still] = one.intercept
        alpha[still] = whole.alpha
    return FinalRegion(pieces[0], pieces[1], alpha)


def _path(piece: FinalRegion, posterior: WeightGaussian, tau: float, bias: bool) -> RayGaussian:
    alpha = piece.alpha[:, None]
    near, near_scale = rescale(piece.features.slope * alpha + piece.features.intercept, bias)  # (n, D), (n,)
    near_mean = (piece.logits.slope * alpha + piece.logits.intercept) / near_scale[:, None]
    # Where the features stop growing the path is one point, the finite value, and nothing is divided by 0.
    size = piece.features.slope.abs().amax(1, keepdim=True)  # (n, 1)
    grows, size = size > 0, torch.where(size > 0, size, 1)
    slope = piece.features.slope / size
    slope = torch.cat([slope, torch.zeros_like(size)], dim=1) if bias else slope
    far = torch.where(grows, slope, near)
    far_mean = torch.where(grows, piece.logits.slope / size, near_mean)
    far_scale = torch.where(grows[:, 0], INFINITE, near_scale)

    def at(u: float) -> LogitGaussian:
        features = (1 - u) * far + u * near
        scale = 1 / ((1 - u) / far_scale + u / near_scale)
        mean = ((1 - u) * far_mean + u * near_mean) * scale[:, None]
        return LogitGaussian(mean, posterior.covariance(posterior.coordinates(features), tau), scale)

    # Where the features stop growing δ still goes to infinity, in any way.
    reach = torch.where(grows[:, 0], near_scale, alpha[:, 0].clamp_min(1))

    def delta(row: Tensor, u: Tensor) -> Tensor:
        return alpha[row, 0] + (1 - u) / ((1 - u) / INFINITE + u / reach[row]) / size[row, 0]

    return RayGaussian(piece.alpha, at, far_scale, near_scale, delta)
