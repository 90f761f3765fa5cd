"""The request for tuning, and the validation batches that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from bitbayes.errors import EmptyLoaderError
from bitbayes.model import Batch, Inputs, Unpadded, check_loader, labelled_batch
from bitbayes.model.loaders.batches import EMPTY
from bitbayes.posteriors.base import WeightPosterior
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
    """

    posterior: WeightPosterior
    residual: Residual | None
    settings: Settings
    method: str
    loader: Iterable[Any] = ()
    progress: bool | None = None
    weighted: bool = False
    class_bias: bool = False

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
                    if look is not None:
                        look(batch.inputs)
                    yield self.observed(batch)
                progress.advance()
        if number < 0:
            raise EmptyLoaderError(EMPTY)

    def observed(self, batch: Batch) -> Batch:
        """The batch, to be measured. Call it before the model runs, which may change inputs in place."""
        return batch if self.residual is None else self.residual.attach(batch)
