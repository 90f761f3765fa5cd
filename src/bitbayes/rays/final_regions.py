"""The final linear region of a network along each ray δ·x, in one pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.errors import ArgumentError, DataError, ModelError
from bitbayes.model import Head, forward, model_device, private_copy
from bitbayes.rays.ray_tensor import RayTensor


class Affine(NamedTuple):
    """slope·δ + intercept; both tensors have one shape and are in float64."""

    slope: Tensor
    intercept: Tensor


class FinalRegion(NamedTuple):
    """A network along n rays δ·x for δ ≥ alpha, where it is affine in δ.

    features: (n, d), the input of the last layer, affine in δ.
    logits: (n, k), affine in δ.
    alpha: (n,). Beyond alpha every unit keeps its state: no ReLU switches and no max pooling changes its
        choice.
    """

    features: Affine
    logits: Affine
    alpha: Tensor

    def rows(self, part: slice) -> FinalRegion:
        """Return the region along some of the rays."""
        features, logits = (Affine(*(each[part] for each in value)) for value in (self.features, self.logits))
        return FinalRegion(features, logits, self.alpha[part])


@torch.no_grad()
def final_region(
    model: nn.Module, head: Head, x: Tensor, *, find_alpha: bool = True, tolerance: float = 0.0
) -> FinalRegion:
    """Return features and logits as slope·δ + intercept, which hold for every δ ≥ alpha; a ray per row of x.

    alpha is the last δ at which a ReLU switches or a max pooling changes its choice; 0 if there is none.

    Args:
        find_alpha: if False, only slopes are computed, at half the cost; alpha and intercepts are infinite.
        tolerance: above 0 the result is approximate: a unit whose slope is below tolerance × its layer's
            largest slope is treated as if its slope were 0.

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
    features, logits, _ = forward(private_copy(model), head, ray)
    if not isinstance(features, RayTensor) or not isinstance(logits, RayTensor):
        raise ModelError(
            "the input does not reach the network's last layer by operations on tensors: it may have left "
            "torch on the way (`.numpy()`, `.item()`)"
        )
    slopes, intercepts = [features.slope, logits.slope], [features.intercept, logits.intercept]
    if not all(bool(each.isfinite().all()) for each in slopes + (intercepts if find_alpha else [])):
        raise DataError("the network overflows along the ray, or its weights hold NaN or infinity")
    alpha = ray.ray_pass.alpha
    if not find_alpha:
        alpha, *intercepts = (torch.full_like(each, torch.inf) for each in (alpha, *slopes))
    return FinalRegion(Affine(slopes[0], intercepts[0]), Affine(slopes[1], intercepts[1]), alpha)


def unit_rays(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x/size and size (n,): points on the same rays whose largest number is near 1.

    So results do not depend on where on its ray x lies. Sizes are powers of 2, so that nothing is rounded.
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
