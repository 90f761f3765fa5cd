"""What a fit learns: a frozen value. Two of them can be added."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bitbayes.errors import DataError, ModelError
from bitbayes.likelihoods import Likelihood
from bitbayes.model import Fingerprint, Head, TrainableLayers
from bitbayes.residual import InputMoments
from bitbayes.structures import Curvature


@dataclass(frozen=True)
class Fitted:
    """All that `fit` learns: sums over data, with no prior in them, and the weights they belong to.

    curvature: by the name of the layer, or one for all layers (`structures.WHOLE_NETWORK`).
    squared_norms: ‖θ*‖² of the weights, by the same names.
    loss: −Σ log p(y | x) of the data.
    input_moments: of the training inputs; None without a residual.
    mutable_buffers: the names of buffers that running the model changes.
    """

    weights: Head | TrainableLayers
    likelihood: Likelihood
    curvature: dict[str, Curvature]
    squared_norms: dict[str, float]
    count: int
    loss: float
    fingerprint: Fingerprint
    input_moments: InputMoments | None
    mutable_buffers: tuple[str, ...] = ()

    def summary(self) -> str:
        """Count and loss as text. Processes compare it to check that they hold the same fit."""
        return f"{self.count:,} points with a loss of {self.loss}"

    def __add__(self, more: Fitted) -> Fitted:
        """The sums over both data sets. The model must be the same; its device may differ."""
        self._check_same_model(more)
        curvature = {
            name: self.curvature[name].to(_device(theirs)) + theirs for name, theirs in more.curvature.items()
        }
        moments = None
        if self.input_moments is not None:
            if more.input_moments is None:
                raise DataError(
                    f"these inputs are not all of {len(self.input_moments.mean)} finite numbers, as those of "
                    "`fit` are: the residual needs that, and residual=False does not"
                )
            moments = self.input_moments.to(more.input_moments.mean.device) + more.input_moments
        return replace(
            self,
            curvature=curvature,
            count=self.count + more.count,
            loss=self.loss + more.loss,
            input_moments=moments,
        )

    def without(self, part: Fitted, max_ratio: float) -> Fitted:
        """The sums over the data that remain when a part of them is taken out.

        Raises a `DataError` if that part is all but 1/`max_ratio` of a sum: see `check_cancellation`.
        """
        self._check_same_model(part)
        if part.count >= self.count:
            raise DataError(
                f"{part.count:,} points are to be taken out, of {self.count:,} that were fitted: none would "
                "be left"
            )
        curvature = {
            name: each.without(part.curvature[name].to(_device(each)), max_ratio)
            for name, each in self.curvature.items()
        }
        moments = self.input_moments
        if moments is not None:
            if part.input_moments is None:
                raise DataError(
                    "what is to be taken out was fitted without a residual, and the whole with one: fit that "
                    "part again with the same options"
                )
            moments = moments.without(part.input_moments.to(moments.mean.device), max_ratio)
        return replace(
            self,
            curvature=curvature,
            count=self.count - part.count,
            loss=max(0.0, self.loss - part.loss),
            input_moments=moments,
        )

    def _check_same_model(self, other: Fitted) -> None:
        if other.fingerprint != self.fingerprint or other.weights != self.weights:
            raise ModelError(
                "the model, or what of it is frozen, has changed since `fit`: call `fit` again, on all data"
            )


def _device(curvature: Curvature) -> torch.device | None:
    return next((tensor.device for tensor in curvature.tensors().values()), None)
