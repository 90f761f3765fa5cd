"""The limit of confidence along a ray."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.likelihood import likelihood_for
from bitbayes.predictive import closed_forms, predict
from bitbayes.rays.ray_gaussian import RayGaussian


class Limit(NamedTuple):
    """The limit of `predict_proba(δ·x)` as δ → ∞, for n rays.

    confidence: (n,), the limit of the largest probability, in float64.
    label: (n,), the class with that probability.
    """

    confidence: Tensor
    label: Tensor


class ApproximateLimit(Limit):
    """A `Limit` that ignores slopes below a tolerance: close to the limit, but without a guarantee."""


def limit(rays: Iterable[RayGaussian], method: str) -> Limit:
    """Return the prediction at u = 0: z = μᵀs/√(κ·sᵀΣs) takes the place of μᵀφ̃/√(1 + κ·φ̃ᵀΣφ̃) at a finite δ.

    s is the slope of the features along the ray. Where s = 0 the features stop growing, and the limit is the
    prediction at the point where they stop. With the residual the limit is 1/k, and the class is that of the
    largest mean. The ray of x = 0 is a point, so its limit is the prediction there.
    """
    require_closed_form(method, closed_forms(), "limit")
    confidences, labels = [], []
    for ray in rays:
        gaussian = ray.at(0)
        if ray.residual is not None:
            gaussian = ray.residual.at_zero(gaussian)
        drop_in = predict(gaussian, method)
        best = likelihood_for(drop_in.shape[1]).log_probabilities(drop_in).max(1)
        confidence, label = best.values.exp(), best.indices
        if ray.residual is not None:
            moves = ray.residual.moves
            confidence = torch.where(moves, 1 / max(2, drop_in.shape[1]), confidence)
            label = torch.where(moves, _largest_mean(gaussian.scaled_mean), label)
        confidences.append(confidence)
        labels.append(label)
    return Limit(torch.cat(confidences), torch.cat(labels))


def _largest_mean(mean: Tensor) -> Tensor:
    """Return the class of the largest mean, (n, k) → (n,)."""
    return mean.argmax(1) if mean.shape[1] > 1 else (mean[:, 0] > 0).long()


def require_closed_form(method: str, methods: tuple[str, ...], what: str) -> None:
    """Raise unless `method` is one of `methods`, those with a closed form of `what`."""
    if method not in methods:
        choices = ", ".join(repr(name) for name in methods)
        raise ArgumentError(f"predictive={method!r} has no {what} in closed form: choose one of {choices}")
