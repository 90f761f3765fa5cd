"""Uniform noise like the validation data: the outliers that tuning uses if it is given none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.model import Inputs
from bitbayes.outliers import noise_between

SEED = 0
# How many random numbers of other processes are drawn at once.
SKIPPED_AT_ONCE = 2**20


@dataclass(frozen=True)
class NoiseLike:
    """Noise in the shapes of the batches it was made from, uniform over the range of all their values.

    `before`: how many random numbers belong to earlier processes; they are drawn first and dropped.
    """

    range: tuple[Tensor, ...] = ()
    shapes: tuple[torch.Size, ...] = ()
    before: int = 0

    @classmethod
    def of(cls, inputs: Inputs) -> NoiseLike:
        """Noise like one batch; raises where noise means nothing."""
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            kind = str(inputs.dtype) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ArgumentError(
                f"uniform noise means nothing for inputs of type {kind}: pass `outliers`, a loader of inputs "
                "unlike the training data, or choose objective='calibrated'"
            )
        return cls((inputs.amin(), inputs.amax()), (inputs.shape,))

    def __add__(self, other: NoiseLike) -> NoiseLike:
        both = torch.stack([*self.range, *other.range])
        return NoiseLike((both.amin(), both.amax()), self.shapes + other.shapes)

    def to(self, device: torch.device) -> NoiseLike:
        """The same noise, on another device."""
        return replace(self, range=tuple(each.to(device) for each in self.range))

    @classmethod
    def share(cls, every: list[NoiseLike], rank: int) -> NoiseLike:
        """A process's share of the noise that one process alone would draw, for the inputs of all of them."""
        whole = sum((each for each in every if each.shapes), cls())
        before = sum(shape.numel() for each in every[:rank] for shape in each.shapes)
        return cls(whole.range, every[rank].shapes, before)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shapes:
            return
        low, high = self.range
        # Drawn on the CPU, so that every device gets the same noise.
        generator = torch.Generator().manual_seed(SEED)
        for start in range(0, self.before, SKIPPED_AT_ONCE):
            skipped = min(SKIPPED_AT_ONCE, self.before - start)
            noise_between(low, high, torch.Size([skipped]), generator)
        for shape in self.shapes:
            yield noise_between(low, high, shape, generator)

    def __len__(self) -> int:
        return len(self.shapes)
