"""The linearised Gaussian over logits along a ray, for a posterior over all layers.

From alpha on f and J are affine in δ, so J Σ Jᵀ/δ² is a quadratic in u = start/δ, start ≥ alpha: three points
determine it, and its value at u = 0 is the limit. In units of scale = δ this is a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.infinity.path import INFINITE, Path
from bitbayes.infinity.ray import FinalPiece, final_piece
from bitbayes.logits import LogitGaussian, Spread
from bitbayes.network import Layer, evaluating, find_head
from bitbayes.posterior import NetworkPosterior

# A little beyond alpha, where a unit is at 0 and has no derivative; and where no unit ever changes its mind.
BEYOND, NEAREST = 1.001, 1e-3
# Where the covariance is looked at, in u.
PLACES = (1.0, 0.5, 0.25)
# What rounding leaves of a covariance that does not grow, relative to the largest; extrapolation adds to it.
NOTHING = 1e-12
ROWS = 64


class ExactNetwork(NamedTuple):
    """A model in float64, its uncertain layers, the Gaussian over them and the prior's precision in each.

    contrasts: directions (k, c) that span all that a predictive sees of k logits.
    """

    model: nn.Module
    layers: tuple[Layer, ...]
    posterior: NetworkPosterior
    precisions: dict[str, float]
    contrasts: Tensor


Gaussians = Callable[[Tensor], Iterable[LogitGaussian]]


@torch.no_grad()
def network_paths(model: nn.Module, gaussians: Gaussians, x: Tensor) -> Iterator[Path]:
    """Paths for the rows of x, of a model in float64 that ends in a linear layer.

    `gaussians(x)` gives the Gaussian over logits at inputs, some at a time. Alpha is up to a thousandth later
    than that of the network.
    """
    for rows in torch.split(x, ROWS):
        piece = network_piece(model, rows)
        yield _path(piece, inside(piece), gaussians, rows.double())


def network_piece(model: nn.Module, x: Tensor) -> FinalPiece:
    """What a model that ends in a linear layer is along the rays of x."""
    x = x.to(next(model.parameters()))
    with evaluating(model):
        head = find_head(model, x[:2])
    return final_piece(model, head, x)


def inside(piece: FinalPiece) -> Tensor:
    """A δ for each ray, (n,), at which it is inside its final region."""
    return torch.where(piece.alpha > 0, BEYOND * piece.alpha, NEAREST)


def _path(piece: FinalPiece, start: Tensor, gaussians: Gaussians, x: Tensor) -> Path:
    covariances = torch.stack([_covariance(gaussians, x, start / u) for u in PLACES])  # (3, n, k, k)
    far = _quadratic(covariances, torch.zeros_like(start))
    # Where neither f nor J grows the path is one point, that at its start.
    sizes = covariances.abs().amax((2, 3))  # (3, n)
    still = (far.abs().amax((1, 2)) <= NOTHING * sizes.amax(0)) & (piece.logits.slope.abs().amax(1) == 0)
    far_scale = torch.where(still, start, INFINITE)

    def at(u: float) -> LogitGaussian:
        place = torch.where(still, 1.0, torch.full_like(start, u))
        values, vectors = torch.linalg.eigh(_quadratic(covariances, place))
        scale = 1 / ((1 - u) / far_scale + u / start)
        mean = piece.logits.slope + piece.logits.intercept * (place / start)[:, None]
        spread = Spread(values.clamp_min(0), vectors, torch.zeros_like(start))
        return LogitGaussian(mean * scale[:, None], spread, scale)

    def delta(row: Tensor, u: Tensor) -> Tensor:
        return start[row] / u.clamp_min(1 / INFINITE)

    return Path(start, at, far_scale, start, delta)


def _covariance(gaussians: Gaussians, x: Tensor, delta: Tensor) -> Tensor:
    """J Σ Jᵀ/δ² at δ·x, (n, k, k)."""
    parts = gaussians(x * delta.reshape(-1, *[1] * (x.dim() - 1)))
    return torch.cat([part.covariance for part in parts]) / delta.square()[:, None, None]


def _quadratic(values: Tensor, u: Tensor) -> Tensor:
    """The quadratic through values (3, n, k, k) at `PLACES`, at u (n,)."""
    total = torch.zeros_like(values[0])
    for i, value in enumerate(values):
        one, other = (place for j, place in enumerate(PLACES) if j != i)
        weight = (u - one) * (u - other) / ((PLACES[i] - one) * (PLACES[i] - other))
        total = total + weight[:, None, None] * value
    return (total + total.mT) / 2
