"""The base class of all detectors: fitted on training features and the last layer, it scores features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from bitbayes.errors import DataError
from bitbayes.precision import to_float64
from bitbayes.tensors import TensorBundle

# Numbers that one step may hold: 128 MiB in float64.
STEP_NUMBERS = 2**24


@dataclass(frozen=True)
class Detector(TensorBundle):
    """A score of features that is larger for those that are more like the training data.

    Everything is computed in float64, so scores stay finite for features that are a million times larger than
    those of the training data. For a device without float64 (Apple's) they are computed on the CPU.
    """

    title: ClassVar[str]

    @classmethod
    @torch.no_grad()
    def fit(cls, features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None = None) -> Self:
        """Return the detector for a network, on the device of the training features.

        Args:
            features: the inputs of the last layer for the training data, (N, d).
            labels: of the training data, (N,).
            weight: of the last layer, (k, d). For a network with one logit f it has one row, which is
                replaced by two: those of the logits ∓f/2.
            bias: of the last layer, (k,), or None.
        """
        _check_features(features, "the training features")
        if not len(features):
            raise DataError("there are no training features: give one row for each training point")
        weight, bias = _checked_layer(features, weight, bias)
        return cls._fit(features, _checked_labels(features, labels, len(weight)), weight, bias)

    @torch.no_grad()
    def score(self, features: Tensor) -> Tensor:
        """Return one number for each row of features (n, d): (n,), larger if more like the training data."""
        _check_features(features, "the features", self.width)
        fitted = self.tensors().values()
        like = next(iter(fitted))
        # The intermediate results of a row are at most as long as the longest side of the fitted tensors.
        longest = max(max(each.shape, default=1) for each in fitted)
        rows = max(1, STEP_NUMBERS // longest)
        parts = (features[start : start + rows] for start in range(0, max(1, len(features)), rows))
        return torch.cat([self._score(part.to(like.device).to(like.dtype)) for part in parts])

    @property
    def width(self) -> int:
        """The number of features d."""
        raise NotImplementedError

    @classmethod
    def _fit(cls, features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Self:
        """As `fit`, after checks; weight and bias in float64."""
        raise NotImplementedError

    def _score(self, features: Tensor) -> Tensor:
        """As `score`, for the rows of one step, in the precision of the fitted tensors."""
        raise NotImplementedError


def steps(features: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows and the features of these rows in float64, at most `STEP_NUMBERS` at a time."""
    rows = max(1, STEP_NUMBERS // features.shape[1])
    for start in range(0, len(features), rows):
        part = slice(start, start + rows)
        yield part, to_float64(features[part])


def _check_features(features: Tensor, what: str, width: int | None = None) -> None:
    if (
        not isinstance(features, Tensor)
        or not features.is_floating_point()
        or features.dim() != 2
        or features.shape[1] != (width or features.shape[1])
    ):
        expected = f"a tensor of real numbers, (n, {width or 'd'})"
        raise DataError(f"{what} are {_shown(features)}: expected {expected}")
    if not bool(features.isfinite().all()):
        raise DataError(f"{what} are not finite: leave out the rows in which the network overflows")


def _checked_layer(features: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weight (k, d) and bias (k,) of k ≥ 2 logits, in float64 on the features' device."""
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.shape[1] != features.shape[1]:
        raise DataError(
            f"the weight is {_shown(weight)}: expected (k, {features.shape[1]}), a column for each feature"
        )
    if bias is None:
        bias = weight.new_zeros(len(weight))
    if not isinstance(bias, Tensor) or bias.shape != weight.shape[:1]:
        raise DataError(f"the bias is {_shown(bias)}: expected ({len(weight)},), as the weight has rows")
    weight, bias = (to_float64(each.detach().to(features.device)) for each in (weight, bias))
    if len(weight) == 1:
        return torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    return weight, bias


def _checked_labels(features: Tensor, labels: Tensor, k: int) -> Tensor:
    if not isinstance(labels, Tensor) or labels.shape != features.shape[:1] or labels.is_floating_point():
        raise DataError(f"the labels are {_shown(labels)}: expected integers, ({len(features)},)")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= k:
        raise DataError(f"the labels go from {low} to {high}: expected 0 to {k - 1}, one for each logit")
    return labels.to(features.device).long()


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)}"
    return f"a {type(value).__name__}"
