"""What confidence tends to along a ray."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.likelihood import likelihood_for
from bitbayes.predictive import CLOSED, predict
from bitbayes.rays.ray_gaussian import RayGaussian


class Limit(NamedTuple):
    """The confidence that `predict_proba(δ·x)` tends to as δ → ∞, and the class it goes to: both (n,)."""

    confidence: Tensor
    label: Tensor


class ApproximateLimit(Limit):
    """The same with slopes below a tolerance left out: close to the limit, and not promised to be it."""


def limit(paths: Iterable[RayGaussian], method: str) -> Limit:
    """The prediction at each path's far end: that of mean μᵀs and variance sᵀΣs, with no 1 beside κ·variance.

    s is the slope of the features along the ray. Where it is 0 the features stop growing, and the limit is
    the prediction at the point where they stop. With the residual it is 1/k, but for x = 0, whose ray is a
    point; the class is that of the largest mean.
    """
    require_closed_form(method, tuple(CLOSED), "limit")
    confidences, labels = [], []
    for path in paths:
        gaussian = path.at(0)
        if path.residual is not None:
            gaussian = path.residual.standing(gaussian)
        drop_in = predict(gaussian, method)
        best = likelihood_for(drop_in.shape[1]).log_probabilities(drop_in).max(1)
        confidence, label = best.values.exp(), best.indices
        if path.residual is not None:
            moves = path.residual.moves
            confidence = torch.where(moves, 1 / max(2, drop_in.shape[1]), confidence)
            label = torch.where(moves, _largest_mean(gaussian.mean), label)
        confidences.append(confidence)
        labels.append(label)
    return Limit(torch.cat(confidences), torch.cat(labels))


def _largest_mean(mean: Tensor) -> Tensor:
    return mean.argmax(1) if mean.shape[1] > 1 else (mean[:, 0] > 0).long()


def require_closed_form(method: str, methods: tuple[str, ...], what: str) -> None:
    """Raise unless the method is one of those for which this is known."""
    if method not in methods:
        choices = ", ".join(repr(name) for name in methods)
        raise ArgumentError(f"predictive={method!r} has no {what} in closed form: choose one of {choices}")
