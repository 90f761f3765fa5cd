"""The last linear region of a network along each ray δ·x, in one pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.errors import ArgumentError, DataError, ModelError
from bitbayes.model import Head, eval_mode, forward, model_device
from bitbayes.rays import ray_rules  # noqa: F401  (registers what the values can go through)
from bitbayes.rays.ray_tensor import RayTensor


class Affine(NamedTuple):
    """slope·δ + intercept, both of the same shape, in float64."""

    slope: Tensor
    intercept: Tensor


class FinalRegion(NamedTuple):
    """What a network is along n rays from `alpha` (n,) on: features (n, d) and logits (n, k) affine in δ."""

    features: Affine
    logits: Affine
    alpha: Tensor

    def rows(self, part: slice) -> FinalRegion:
        """Some of the rays."""
        features, logits = (Affine(*(half[part] for half in value)) for value in (self.features, self.logits))
        return FinalRegion(features, logits, self.alpha[part])


@torch.no_grad()
def final_region(
    model: nn.Module, head: Head, x: Tensor, *, find_alpha: bool = True, tolerance: float = 0.0
) -> FinalRegion:
    """φ(δ·x) = slope·δ + intercept for every δ ≥ alpha, for each row of x, and the logits likewise.

    alpha is the last δ at which a unit of the network changes its mind (a ReLU its sign, a max pooling its
    choice); 0 if none does. Without `find_alpha` only the slopes are computed, at half the price: alpha and
    the intercepts are infinite. A `tolerance` above 0 is approximate: units whose slope is less than that,
    relative to their layer's largest, count as settled where they are.

    >>> from bitbayes.model import find_head
    >>> model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> for p, values in zip(model.parameters(), ([[1.0], [-1.0]], [-4.0, 3.0], [[2.0, 1.0]], [5.0])):
    ...     p.data = torch.tensor(values)
    >>> region = final_region(model, find_head(model, torch.ones(1, 1)), torch.ones(1, 1))
    >>> region.logits.slope.item(), region.logits.intercept.item(), region.alpha.item()
    (2.0, -3.0, 4.0)
    """
    check_rays(x)
    ray = RayTensor.along(x.to(model_device(model)), find_alpha=find_alpha, tolerance=tolerance)
    with eval_mode(model):
        features, logits, _ = forward(model, head, ray)
    if not isinstance(features, RayTensor) or not isinstance(logits, RayTensor):
        raise ModelError(
            "the input does not reach the network's last layer by operations on tensors: it may have left "
            "torch on the way (`.numpy()`, `.item()`)"
        )
    halves = [half for value in (features, logits) for half in (value.slope, value.intercept)]
    if not all(bool(half.isfinite().all()) for half in (halves if find_alpha else halves[::2])):
        raise DataError("the network overflows along the ray, or its weights hold NaN or infinity")
    if find_alpha:
        return FinalRegion(Affine(*halves[:2]), Affine(*halves[2:]), ray.ray_pass.alpha)
    pieces = [Affine(slope, torch.full_like(slope, torch.inf)) for slope in halves[::2]]
    return FinalRegion(pieces[0], pieces[1], torch.full_like(ray.ray_pass.alpha, torch.inf))


def unit_rays(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same rays from points of a size near 1, and what those were divided by, (n,): powers of 2.

    So that nothing depends on how far out on its ray an x lies, nor is anything rounded.
    """
    check_rays(x)
    largest = x.flatten(1).abs().amax(1) if x.dim() > 1 else x.abs()
    _, exponent = torch.frexp(torch.where(largest > 0, largest, 1).double())
    size = torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent - 1)
    return x / size.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1)), size


def check_rays(x: object) -> None:
    """Raise unless each row of x makes a ray δ·x."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
        raise ArgumentError(f"a ray δ·x needs x to be a tensor of floating-point numbers, got {kind}")
    if not x.numel():
        raise DataError(f"the input, of shape {tuple(x.shape)}, is empty")
    if not bool(x.isfinite().all()):
        raise DataError("the input holds NaN or infinity")
