"""The request for tuning, and the validation batches that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import length_hint
from typing import Any

import torch

from bitbayes.errors import EmptyLoaderError
from bitbayes.fitted import DataEntry
from bitbayes.model import Batch, DataDigest, Inputs, Unpadded, check_loader, labelled_batch
from bitbayes.model.loaders.batches import EMPTY
from bitbayes.posteriors.base import WeightPosterior
from bitbayes.processes import current_processes
from bitbayes.progress import Progress
from bitbayes.residual import Residual
from bitbayes.settings import Settings


@dataclass(frozen=True)
class TuningRequest:
    """What is tuned, and on what.

    residual: the residual to tune or to keep, or None.
    settings: the current ones.
    method: how probabilities are predicted: a closed form, or "mc".
    loader: validation data; this process's share of them.
    weighted: whether their batches have weights of the points.
    class_bias: whether a bias for each class is chosen, too.
    read: what was read of the loader so far.
    """

    posterior: WeightPosterior
    residual: Residual | None
    settings: Settings
    method: str
    loader: Iterable[Any] = ()
    progress: bool | None = None
    weighted: bool = False
    class_bias: bool = False
    read: _Read = field(default_factory=lambda: _Read(), compare=False, repr=False)

    def validation_batches(self, look: Callable[[Inputs], None] | None = None) -> Iterator[Batch]:
        """The batches of the loader, without points that a sampler repeats, that the residual measures.

        `look`: called with the inputs of each batch.
        """
        number = -1
        with Progress("tuning: validation data", length_hint(self.loader), self.progress) as progress:
            unpadded = Unpadded(self.loader)
            for number, given in enumerate(check_loader(self.loader)):
                model = self.posterior.model
                batch = unpadded(labelled_batch(given, number, model, weighted=self.weighted))
                if batch is not None:
                    self.read.add(batch)  # now: the model may change its inputs
                    if look is not None:
                        look(batch.inputs)
                    yield self.observed(batch)
                progress.advance()
        if number < 0:
            raise EmptyLoaderError(EMPTY)

    def entry(self) -> DataEntry:
        """The data that all processes have read. All of them must call it, after the last batch."""
        found = torch.tensor([self.read.count, int(self.read.digest)])  # sums modulo 2⁶⁴
        current_processes().add_(found)
        count, digest = found.tolist()
        return DataEntry.of(count, digest)

    def observed(self, batch: Batch) -> Batch:
        """The batch, to be measured. Call it before the model runs, which may change inputs in place."""
        return batch if self.residual is None else self.residual.attach(batch)


class _Read:
    """How many points were read, and their digest. It has no weights: the points are the same with others."""

    def __init__(self) -> None:
        self.count, self.digest = 0, DataDigest()

    def add(self, batch: Batch) -> None:
        assert batch.labels is not None
        self.count += len(batch.labels)
        self.digest.add(replace(batch, weights=None))
