"""The limit of confidence along a ray."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import Likelihood
from bitbayes.rays.ray_gaussian import RayGaussian


class Limit(NamedTuple):
    """The limit of `predict_proba(δ·x)` as δ → ∞, for n rays.

    confidence: (n,), the limit of the largest probability, in float64.
    label: (n,), the class with that probability.

    With several labels for each input, both are (n, k): max(p, 1 − p) of each label, and 1 or 0.
    """

    confidence: Tensor
    label: Tensor


class ApproximateLimit(Limit):
    """A `Limit` that ignores slopes below a tolerance: close to the limit, but without a guarantee."""


def limit(rays: Iterable[RayGaussian], likelihood: Likelihood, method: str) -> Limit:
    """Return the prediction at u = 0: z = μᵀs/√(κ·sᵀΣs) takes the place of μᵀφ̃/√(1 + κ·φ̃ᵀΣφ̃) at a finite δ.

    s is the slope of the features along the ray. Where s = 0 the features stop growing, and the limit is the
    prediction at the point where they stop. With the residual the limit is 1/k if a level that counts moves
    along the ray, as the input does for x ≠ 0, and the class is that of the largest mean. Otherwise it is the
    prediction with the variance that the residual has there.
    """
    require_closed_form(method, tuple(likelihood.closed_forms), "limit")
    confidences, labels = [], []
    for ray in rays:
        gaussian = ray.at(0)
        if ray.residual is not None:
            gaussian = ray.residual.at_rest(gaussian)
        best = likelihood.log_decisions(likelihood.predict(gaussian, method)).max(2)
        confidence, label = best.values.exp(), best.indices  # (n, decisions)
        if likelihood.one_label:
            confidence, label = confidence[:, 0], label[:, 0]
        if ray.residual is not None:
            moves, mean = ray.residual.moves, gaussian.scaled_mean
            moves = moves.reshape(-1, *[1] * (label.dim() - 1))
            confidence = torch.where(moves, likelihood.far_confidence(mean.shape[1]), confidence)
            label = torch.where(moves, likelihood.far_labels(mean), label)
        confidences.append(confidence)
        labels.append(label)
    return Limit(torch.cat(confidences), torch.cat(labels))


def require_closed_form(method: str, methods: tuple[str, ...], what: str) -> None:
    """Raise unless `method` is one of `methods`, those with a closed form of `what`."""
    if method not in methods:
        choices = ", ".join(repr(name) for name in methods)
        todo = f": choose one of {choices}" if methods else ", and no other predictive of this likelihood has"
        raise ArgumentError(f"predictive={method!r} has no {what} in closed form{todo}")
