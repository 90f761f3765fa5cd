"""The batches of one pass over training data."""

from collections.abc import Iterator
from itertools import chain
from operator import length_hint

from torch import Tensor

from bitbayes.errors import EmptyLoaderError
from bitbayes.fitting.request import FitRequest, Totals
from bitbayes.model import Batch, Unpadded, check_loader, labelled_batch, move, split_batch
from bitbayes.model.loaders.batches import EMPTY
from bitbayes.progress import Progress
from bitbayes.residual import as_rows

PREVIEW_ROWS = 2


class TrainingData:
    """The batches that are left to read, on the model's device, without the points that a sampler repeats.

    totals: the sums over what was read before. Batches and rows are counted there as they are read.
    preview: the first inputs of the loader, to look at before the pass.
    """

    def __init__(self, request: FitRequest) -> None:
        self.request, self.totals = request, Totals()
        self.loader = check_loader(request.loader)
        if request.keeper is not None:
            self.loader, self.totals = request.keeper.begin(self.loader, request.device)
        self.unpadded = Unpadded(request.loader, self.totals.rows)
        self.iterator = iter(self.loader)
        try:
            self.first = next(self.iterator)
        except StopIteration:
            raise EmptyLoaderError(EMPTY) from None
        inputs, _ = split_batch(self.first, 0)
        # The shapes of a mapping's tensors depend on each other: only a plain tensor is cut.
        self.preview = move(inputs[:PREVIEW_ROWS] if isinstance(inputs, Tensor) else inputs, request.device)
        if request.options.residual_asked:
            as_rows(self.preview)  # raises, before the model sees them, if a distance means nothing for them

    def __iter__(self) -> Iterator[Batch]:
        totals, device = self.totals, self.request.device
        # The first batch of a resumed pass was summed up before.
        batches = self.iterator if totals.batches else chain([self.first], self.iterator)
        with Progress("fitting", length_hint(self.loader), self.request.progress) as progress:
            for number, given in enumerate(batches, totals.batches):
                batch = labelled_batch(given, number, device)
                assert batch.labels is not None
                totals.batches += 1
                totals.rows += len(batch.labels)  # not those of the inputs, which may be texts in a list
                own = self.unpadded(batch)
                if own is not None:
                    yield own
                progress.advance()
