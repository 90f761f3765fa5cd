"""What a fit learns: a frozen value. Two of them can be added."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from bitbayes.errors import DataError, ModelError
from bitbayes.likelihoods import Likelihood
from bitbayes.model import (
    Fingerprint,
    Head,
    InputForm,
    KnownOutputs,
    Level,
    SideEffects,
    TrainableLayers,
)
from bitbayes.residual import INPUT, LevelSums
from bitbayes.structures import Curvature


@dataclass(frozen=True)
class DataEntry:
    """The data of one `fit` or `update`: the number of points, and their digest (`model/loaders/digests.py`).

    Two entries are equal if the data are the same, in whatever order and batches they were read. `weight`:
    how many times the points count together. The digest depends on it; as a sum it is rounded.
    """

    count: int
    digest: int
    weight: float = field(compare=False)

    @classmethod
    def of(cls, count: int, digest: int, weight: float | None = None) -> Self:
        """An entry with a digest between 0 and 2⁶⁴; each point counts once if there is no weight."""
        return cls(count, digest % 2**64, float(count if weight is None else weight))

    @classmethod
    def joined(cls, parts: Iterable[DataEntry]) -> Self:
        """The entry of all data, from those of their parts."""
        parts = tuple(parts)
        count, digest = sum(each.count for each in parts), sum(each.digest for each in parts)
        return cls.of(count, digest, math.fsum(each.weight for each in parts))


def remaining(entries: Sequence[DataEntry], part: Sequence[DataEntry]) -> tuple[DataEntry, ...]:
    """The entries that are left when a part is taken out; raises if the part is not in, or if none are."""
    here, out = Counter(entries), Counter(part)
    if missing := out - here:
        count = sum(each.count for each in missing.elements())
        raise DataError(
            f"{count:,} points are to be taken out that no `fit` or `update` here has added as a whole, or "
            "that are out already: only what was added can be taken out. Fit parts that may have to go by "
            "themselves and merge them, or fit again without these data"
        )
    if here == out:
        raise DataError(
            f"all {sum(each.count for each in entries):,} points are to be taken out: none is left"
        )
    return tuple((here - out).elements())


@dataclass(frozen=True)
class Fitted:
    """All that `fit` learns: sums over data, with no prior in them, and the weights they belong to.

    curvature: by the name of the layer, or one for all layers (`structures.WHOLE_NETWORK`).
    squared_norms: ‖θ*‖² of the weights, by the same names.
    loss: −Σ log p(y | x) of the data.
    entries: the data, one entry for each `fit` or `update`.
    levels: the levels of the residual inside the network.
    level_sums: of the training data, by the name of the level, the input's first; none without a residual.
    mutable_buffers: the names of buffers that running the model changes.
    inputs: what the inputs are like.
    random: whether running it draws random numbers.
    known_outputs: of the model at a few made-up inputs, or None.
    squared_errors: Σ (y − f)² for each output, if the likelihood has a noise variance; otherwise ().
    """

    weights: Head | TrainableLayers
    likelihood: Likelihood
    curvature: dict[str, Curvature]
    squared_norms: dict[str, float]
    loss: float
    fingerprint: Fingerprint
    entries: tuple[DataEntry, ...]
    levels: tuple[Level, ...] = ()
    level_sums: dict[str, LevelSums] = field(default_factory=dict)
    mutable_buffers: tuple[str, ...] = ()
    inputs: InputForm = field(default_factory=InputForm)
    random: bool = False
    known_outputs: KnownOutputs | None = None
    squared_errors: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """The number of points."""
        return sum(each.count for each in self.entries)

    @property
    def total_weight(self) -> float:
        """How many times the points count together; their number if they have no weights."""
        return math.fsum(each.weight for each in self.entries)

    @property
    def chosen(self) -> TrainableLayers | None:
        """The weights of a subnetwork; None if there is none."""
        weights = self.weights
        return weights if isinstance(weights, TrainableLayers) and weights.is_subnetwork else None

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
            loss=self.loss + more.loss,
            entries=self.entries + more.entries,
            level_sums=sums,
            mutable_buffers=tuple(sorted({*self.mutable_buffers, *more.mutable_buffers})),
            random=self.random or more.random,
            squared_errors=tuple(map(sum, zip(self.squared_errors, more.squared_errors, strict=True))),
        )

    def without(self, part: Fitted, max_ratio: float) -> Fitted:
        """The sums over the data that remain when a part of them is taken out.

        Raises a `DataError` as `remaining` does, and if that part is all but 1/`max_ratio` of a sum: see
        `check_cancellation`.
        """
        self._check_same_model(part)
        entries = remaining(self.entries, part.entries)
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
            loss=max(0.0, self.loss - part.loss),
            entries=entries,
            level_sums=sums,
            squared_errors=tuple(
                max(0.0, whole - own)
                for whole, own in zip(self.squared_errors, part.squared_errors, strict=True)
            ),
        )

    def _check_same_model(self, other: Fitted) -> None:
        if other.fingerprint == self.fingerprint and self.chosen and other.chosen != self.chosen:
            raise ModelError(
                "the two are about subnetworks of other weights, because each fit chooses its own: fit once, "
                "and `update` it with the other data, or fit all data by several processes"
            )
        if other.fingerprint != self.fingerprint or other.weights != self.weights:
            raise ModelError(
                "the model, or what of it is frozen, has changed since `fit`: call `fit` again, on all data"
            )


def _device(curvature: Curvature) -> torch.device | None:
    return next((tensor.device for tensor in curvature.tensors().values()), None)
