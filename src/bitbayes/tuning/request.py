"""What tuning is asked for, and the batches that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import length_hint
from typing import Any

import torch

from bitbayes.errors import EmptyLoaderError
from bitbayes.likelihoods import Likelihood
from bitbayes.model import Batch, Inputs, Unpadded, check_loader, labelled_batch
from bitbayes.model.loaders.batches import EMPTY
from bitbayes.posteriors.base import WeightPosterior
from bitbayes.processes import current_processes
from bitbayes.progress import Progress
from bitbayes.residual import Residual
from bitbayes.settings import Settings


@dataclass(frozen=True)
class TuningRequest:
    """What is tuned, and on what.

    residual: the one that is chosen or kept, if any.
    settings: those of now.
    method: how probabilities are predicted: a closed form, or "mc".
    loader: validation data; this process's share of them.
    """

    posterior: WeightPosterior
    residual: Residual | None
    settings: Settings
    method: str
    loader: Iterable[Any] = ()
    progress: bool | None = None

    @property
    def likelihood(self) -> Likelihood:
        """Of the labels."""
        return self.posterior.fitted.likelihood

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.posterior.device

    @property
    def shown(self) -> bool | None:
        """Whether to show a progress bar: by default only the first process does."""
        return current_processes().shown(self.progress)

    def validation_batches(self, look: Callable[[Inputs], None] | None = None) -> Iterator[Batch]:
        """The batches of the loader, without points that a sampler repeats, with the residual's kernel.

        `look`: is called with the inputs of each.
        """
        unpadded = Unpadded(check_loader(self.loader))
        number = -1
        with Progress("tuning: validation data", length_hint(self.loader), self.shown) as progress:
            for number, given in enumerate(self.loader):
                batch = unpadded(labelled_batch(given, number, self.device))
                if batch is not None:
                    if look is not None:
                        look(batch.inputs)
                    yield self.with_kernel(batch)
                progress.advance()
        if number < 0:
            raise EmptyLoaderError(EMPTY)

    def with_kernel(self, batch: Batch) -> Batch:
        """The batch with its √k(x): now, since a model may work in place on its inputs."""
        if self.residual is None:
            return batch
        return replace(batch, root_kernel=self.residual.root_kernel(batch.inputs))
