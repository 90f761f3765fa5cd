"""One pass over training data: the request, the batches, and the running sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import length_hint
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError, EmptyLoaderError
from bitbayes.fitted import DataEntry, Fitted
from bitbayes.likelihoods import Likelihood
from bitbayes.model import (
    Batch,
    DataDigest,
    Head,
    InputForm,
    Inputs,
    KnownOutputs,
    Level,
    Run,
    SomeRows,
    TrainableLayers,
    Unpadded,
    check_loader,
    input_kinds,
    labelled_batch,
    model_device,
    private_copy,
)
from bitbayes.model.loaders.batches import EMPTY
from bitbayes.options import Options
from bitbayes.progress import Progress
from bitbayes.residual import LevelSums, is_finite
from bitbayes.structures import WHOLE_NETWORK, Curvature

PREVIEW_ROWS = 2
# How many numbers are squared and summed at once.
NORM_NUMBERS = 2**24


class Checkpointer(Protocol):
    """Saves the running sums of a pass, so that an interrupted pass can be resumed."""

    def begin(self, loader: Iterable[Any], device: torch.device) -> tuple[Iterable[Any], Totals]:
        """The loader without the batches already summed (except its first), and their sums."""

    def write_if_due(self, totals: Totals, check: Callable[[], None]) -> None:
        """Save the sums, if the last time was long ago. Before that, `check` is called, which may raise."""


@dataclass(frozen=True)
class FitRequest:
    """One pass over data.

    weighted: whether the batches have weights of their points.
    seen: how many points were fitted before. The seed of drawn labels depends on it, so that `update` adds
        independent draws.
    chosen: the weights of a subnetwork; None if there is none, or if they are still to be chosen.
    """

    model: nn.Module
    loader: Iterable[Any]
    options: Options
    progress: bool | None = None
    seen: int = 0
    checkpointer: Checkpointer | None = None
    weighted: bool = False
    chosen: TrainableLayers | None = None


@dataclass
class Totals:
    """The running sums of a pass.

    count: the number of points.
    weight: how many times they count together, () or a number.
    batches, rows: the number of batches that were read, and of inputs in them.
    squared_errors: Σ (y − f)² for each output, (k,), if the likelihood has a noise variance.
    digest: of the data that were read.
    generator: of the labels that are drawn; None if none are.
    inputs: what the inputs are like.
    """

    curvature: dict[str, Curvature] = field(default_factory=dict)
    count: int = 0
    weight: Tensor | float = 0.0
    loss: Tensor | float = 0.0
    squared_errors: Tensor | None = None
    level_sums: dict[str, LevelSums] = field(default_factory=dict)
    batches: int = 0
    rows: int = 0
    digest: DataDigest = field(default_factory=DataDigest)
    generator: torch.Generator | None = None
    inputs: InputForm = field(default_factory=InputForm)

    def add_points(
        self,
        likelihood: Likelihood,
        logits: Tensor,
        labels: Tensor,
        curvature: dict[str, Curvature],
        weights: Tensor | None = None,
    ) -> None:
        """Add the losses and the curvature of some points, from logits (n, k) in float64.

        `weights`: how many times each point counts, (n,); None is once. The curvature has them already.
        """
        self.count += len(logits)
        self.weight = self.weight + (len(logits) if weights is None else weights.sum())
        losses = likelihood.losses(logits, labels)
        self.loss = self.loss + (losses.sum() if weights is None else weights @ losses)
        each = likelihood.squared_errors(logits, labels)
        if each is not None:
            errors = each.sum(0) if weights is None else weights @ each
            self.squared_errors = errors if self.squared_errors is None else self.squared_errors + errors
        for name, more in curvature.items():
            if name in self.curvature:
                self.curvature[name].add_(more)
            else:
                self.curvature[name] = more.to_float64()

    def as_fitted(
        self,
        weights: Head | TrainableLayers,
        likelihood: Likelihood,
        parameters: Mapping[str, Sequence[Tensor]],
        request: FitRequest,
        run: Run,
        levels: tuple[Level, ...],
    ) -> Fitted:
        """What was learned. Call it after the last batch.

        Args:
            weights: the weights that got a Gaussian.
            likelihood: of the labels.
            parameters: these weights, by the names of the curvatures.
            request: what was asked for.
            run: what is known of the model after the pass.
            levels: those of the residual inside the network.
        """
        if not self.count:  # all points of this process are repeats of other processes' points
            raise EmptyLoaderError("the loader has no points but those that other processes have")
        if not float(self.weight):
            raise EmptyLoaderError("no point counts: all weights are 0")
        sums = {name: each for name, each in self.level_sums.items() if is_finite(each)}
        if len(sums) < len(self.level_sums) and request.options.residual_asked:  # inputs of 1e90, say
            raise DataError("the fourth powers of the training inputs overflow float64: scale them down")
        norms = {name: _squared_norm(tensors) for name, tensors in parameters.items()}
        return Fitted(
            weights=weights,
            likelihood=likelihood,
            curvature=self.curvature,
            squared_norms=norms,
            loss=float(self.loss),
            fingerprint=run.fingerprint,
            entries=(DataEntry.of(self.count, int(self.digest), float(self.weight)),),
            levels=tuple(each for each in levels if each.name in sums),
            level_sums=sums,
            mutable_buffers=run.side_effects.buffers,
            inputs=self.inputs,
            random=run.side_effects.random,
            squared_errors=() if self.squared_errors is None else tuple(self.squared_errors.tolist()),
        )

    def check_overflow(self, dtype: torch.dtype) -> None:
        """Raise if a sum overflows in the prediction dtype."""
        for name, each in self.curvature.items():
            if not all(bool(total.to(dtype).isfinite().all()) for total in each.tensors().values()):
                where = "the network" if name == WHOLE_NETWORK else f"the layer {name!r}"
                larger = "" if dtype == torch.float64 else "fit the model in float64, or "
                raise DataError(
                    f"the squares of what the training data give at {where} overflow {dtype}: {larger}scale "
                    "its inputs down"
                )


class TrainingData:
    """The batches still to be read, on the model's device, without the points that a sampler repeats.

    totals: the sums so far. Batches and rows are counted there as they are read.
    preview: the first inputs of the loader, for a run of the model before the pass.
    some_rows: of the first batch, for a check of the model.
    input_kinds: of the first batch, of which inputs are made up.
    """

    def __init__(self, request: FitRequest) -> None:
        self.request, self.totals, self.loader = request, Totals(), request.loader
        self.unpadded = Unpadded(self.loader)
        self.device = model_device(request.model)
        check_loader(self.loader)
        if request.checkpointer is not None:
            self.loader, self.totals = request.checkpointer.begin(self.loader, self.device)
        self.iterator = iter(self.loader)
        try:
            first = next(self.iterator)
        except StopIteration:
            raise EmptyLoaderError(EMPTY) from None
        self.first = self._labelled(first, 0)
        inputs, labels = self.first.inputs, self.first.labels
        assert labels is not None
        self.totals.inputs = InputForm.of(inputs)
        # The shapes of a mapping's tensors depend on each other: only a plain tensor is cut.
        self.some_rows, self.input_kinds = SomeRows.of(inputs, len(labels)), input_kinds(inputs)
        self.preview = _copied(inputs[:PREVIEW_ROWS] if isinstance(inputs, Tensor) else inputs)

    def _labelled(self, given: Any, number: int) -> Batch:
        return labelled_batch(given, number, self.request.model, weighted=self.request.weighted)

    def with_known_outputs(self, fitted: Fitted) -> Fitted:
        """What was fitted, with the model's outputs at made-up inputs."""
        network = private_copy(self.request.model, fitted.side_effects)
        return replace(fitted, known_outputs=KnownOutputs.of(network, self.input_kinds))

    def __iter__(self) -> Iterator[Batch]:
        """The batches."""
        totals = self.totals
        self.unpadded.skip(totals.rows)
        # The first batch of a resumed pass was summed up before.
        batches = self.iterator if totals.batches else chain([self.first], self.iterator)
        with Progress("fitting", length_hint(self.loader), self.request.progress) as progress:
            for number, given in enumerate(batches, totals.batches):
                batch = given if number == 0 else self._labelled(given, number)
                assert batch.labels is not None
                totals.batches += 1
                totals.rows += len(batch.labels)  # not those of the inputs, which may be texts in a list
                own = self.unpadded(batch)
                if own is not None:
                    totals.digest.add(own)  # now: the model may change its inputs
                    yield own
                progress.advance()


def _copied(inputs: Inputs) -> Inputs:
    """A copy, because the model may change its inputs in place."""
    if isinstance(inputs, Tensor):
        return inputs.clone()
    return {name: each.clone() if isinstance(each, Tensor) else each for name, each in inputs.items()}


def _squared_norm(tensors: Sequence[Tensor]) -> float:
    # In parts: a head of 100,000 classes would take several gigabytes in float64.
    parts = (part for tensor in tensors for part in torch.split(tensor.flatten(), NORM_NUMBERS))
    return sum(float(part.double().square().sum()) for part in parts)
