"""What a fit learns: a frozen value. Two of them can be added."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from bitbayes.errors import DataError, ModelError
from bitbayes.likelihoods import Likelihood
from bitbayes.model import Fingerprint, Head, KnownOutputs, Level, SideEffects, TrainableLayers
from bitbayes.residual import INPUT, LevelSums
from bitbayes.structures import Curvature


@dataclass(frozen=True)
class Fitted:
    """All that `fit` learns: sums over data, with no prior in them, and the weights they belong to.

    curvature: by the name of the layer, or one for all layers (`structures.WHOLE_NETWORK`).
    squared_norms: ‖θ*‖² of the weights, by the same names.
    loss: −Σ log p(y | x) of the data.
    levels: the levels of the residual inside the network.
    level_sums: of the training data, by the name of the level, the input's first; none without a residual.
    mutable_buffers: the names of buffers that running the model changes.
    random: whether running it draws random numbers.
    known_outputs: of the model at a few made-up inputs, or None.
    """

    weights: Head | TrainableLayers
    likelihood: Likelihood
    curvature: dict[str, Curvature]
    squared_norms: dict[str, float]
    count: int
    loss: float
    fingerprint: Fingerprint
    levels: tuple[Level, ...] = ()
    level_sums: dict[str, LevelSums] = field(default_factory=dict)
    mutable_buffers: tuple[str, ...] = ()
    random: bool = False
    known_outputs: KnownOutputs | None = None

    @property
    def side_effects(self) -> SideEffects:
        """What running the model does besides its output, for a `private_copy`."""
        return SideEffects(self.mutable_buffers, self.random)

    def summary(self) -> str:
        """Count and loss as text. Processes compare it to check that they hold the same fit."""
        return f"{self.count:,} points with a loss of {self.loss}"

    def __add__(self, more: Fitted) -> Fitted:
        """The sums over both data sets. The model must be the same; its device may differ."""
        self._check_same_model(more)
        curvature = {
            name: self.curvature[name].to(_device(theirs)) + theirs for name, theirs in more.curvature.items()
        }
        if more.level_sums.keys() != self.level_sums.keys():
            size = (
                f"of {len(self.level_sums[INPUT].mean)} finite numbers"
                if INPUT in self.level_sums
                else "finite"
            )
            raise DataError(
                f"these inputs are not all {size}, as those of `fit` are, or they were fitted with another "
                "residual: the residual needs that, and residual=False does not"
            )
        sums = {
            name: self.level_sums[name].to(each.mean.device) + each for name, each in more.level_sums.items()
        }
        return replace(
            self,
            curvature=curvature,
            count=self.count + more.count,
            loss=self.loss + more.loss,
            level_sums=sums,
            mutable_buffers=tuple(sorted({*self.mutable_buffers, *more.mutable_buffers})),
            random=self.random or more.random,
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
        if part.level_sums.keys() != self.level_sums.keys():
            raise DataError(
                "what is to be taken out was fitted without the residual of the whole, or with another: fit "
                "that part again with the same options"
            )
        sums = {
            name: each.without(part.level_sums[name].to(each.mean.device), max_ratio)
            for name, each in self.level_sums.items()
        }
        return replace(
            self,
            curvature=curvature,
            count=self.count - part.count,
            loss=max(0.0, self.loss - part.loss),
            level_sums=sums,
        )

    def _check_same_model(self, other: Fitted) -> None:
        if other.fingerprint != self.fingerprint or other.weights != self.weights:
            raise ModelError(
                "the model, or what of it is frozen, has changed since `fit`: call `fit` again, on all data"
            )


def _device(curvature: Curvature) -> torch.device | None:
    return next((tensor.device for tensor in curvature.tensors().values()), None)
