"""Running a model over data: features and logits of each batch, checked, in eval mode, without gradients."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from bitbayes.errors import EmptyLoaderError, ModelError
from bitbayes.model.head.composite import composite_output
from bitbayes.model.head.head import Head
from bitbayes.model.head.layout import IGNORED, Layout, position_labels, refuse_copied_labels
from bitbayes.model.head.levels import recorded_levels
from bitbayes.model.head.linear_maps import (
    CHECKED_ROWS,
    computes,
    equal_values,
    feature_axis,
    is_batch,
    rows_of,
)
from bitbayes.model.loaders.batches import Batch, Inputs
from bitbayes.model.loaders.sides import pair_for
from bitbayes.model.running.calls import call, call_hooks
from bitbayes.model.running.deferred_checks import DeferredChecks, check_finite, finite_sum
from bitbayes.precision import prediction_dtype, without_autocast


@dataclass(frozen=True)
class FeatureBatch(Batch):
    """A batch that was run through the model: the last layer's `features` (n, d) and `logits` (n, k).

    If the output has positions, each of them is a point with its own row. Those with the label -100 are left
    out.
    """

    features: Tensor
    logits: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def observed(self) -> Self:
        """The batch with what its observer finds."""
        if self.observer is None:
            return self
        return replace(self, observer=None, rows=(), distances=self.observer.look(self.rows))

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """The points of several batches without positions. Their inputs are left out."""
        first, *others = parts
        if not others:
            return first
        features, logits = (
            torch.cat([getattr(each, name) for each in parts]) for name in ("features", "logits")
        )
        labels, weights = (
            None if getattr(first, name) is None else torch.cat([getattr(each, name) for each in parts])
            for name in ("labels", "weights")
        )
        observer, rows = first.observer, first.rows
        if observer is not None:
            before = zip(*(each.observer.before for each in parts), strict=True)
            observer = replace(observer, before=tuple(torch.cat(each) for each in before))
            rows = tuple(torch.cat(each) for each in zip(*(each.rows for each in parts), strict=True))
        return replace(
            first,
            inputs={},
            labels=labels,
            features=features,
            logits=logits,
            observer=observer,
            rows=rows,
            weights=weights,
        )

    def select(self, which: Tensor) -> Self:
        """Some of the points, by a mask or by their indices; the inputs stay as they are."""
        labels, distances, weights = self.labels, self.distances, self.weights
        return replace(
            self,
            labels=None if labels is None else labels[which],
            features=self.features[which],
            logits=self.logits[which],
            distances=None if distances is None else distances[which.to(distances.device)],
            weights=None if weights is None else weights[which.to(weights.device)],
        )


@dataclass
class FeaturePasses:
    """Runs batches through a model, without gradients.

    network: a private copy of the model.
    head: its head.
    checks: raise where features and logits are not finite, or not the head's own.
    some: whether there were points so far.
    skipped: whether there were batches without a point.
    """

    network: nn.Module
    head: Head
    checks: DeferredChecks
    some: bool = False
    skipped: bool = False

    @torch.no_grad()
    def run(self, batch: Batch) -> FeatureBatch | None:
        """The batch with its features and logits; None if all labels of its positions are -100.

        Unless the output has positions, its observer has not looked yet (`FeatureBatch.observed`), so that it
        may look at several batches at once.
        """
        observer = batch.observer
        levels = observer.levels if observer is not None else ()
        with recorded_levels(self.network, levels, batch.inputs) as recorded:
            features, logits, shape = forward(self.network, self.head, batch.inputs, self.checks)
        points = FeatureBatch(**{**vars(batch), "rows": tuple(recorded())}, features=features, logits=logits)
        if self.head.layout.positions:
            points = points.observed()  # before each position becomes a point
            if not self.some and not self.skipped:
                refuse_copied_labels(batch)
            points = _by_position(points, self.head.layout, shape)
            if points.labels is not None and not len(points):
                self.skipped = True
                return None
        self.some = True
        otherwise = partial(check_finite, batch, points.features, points.logits, self.network)
        self.checks.add(finite_sum(batch.inputs, points.features, points.logits), otherwise)
        return points

    def refuse_no_points(self) -> None:
        """Raise if there were batches, and all their positions had the label -100."""
        if not self.some:
            raise EmptyLoaderError(f"no position has a label: all labels are {IGNORED}")


def _by_position(points: FeatureBatch, layout: Layout, shape: tuple[int, ...]) -> FeatureBatch:
    """The batch with one row for each position that counts; `shape`: of the model's output."""
    sizes = layout.position_sizes(shape)
    distances, labels, weights = points.distances, points.labels, points.weights
    if distances is not None:
        distances = distances.repeat_interleave(math.prod(sizes), dim=0)
    if weights is not None:  # each position counts as often as its input
        weights = weights.repeat_interleave(math.prod(sizes))
    points = replace(points, distances=distances, weights=weights, positions=sizes)
    if labels is None:
        return points
    labels = position_labels(labels, shape[0], sizes, points.logits.shape[1], points.name)
    return replace(points, labels=labels).select(labels != IGNORED)


def forward(
    model: nn.Module, head: Head, inputs: Inputs, checks: DeferredChecks | None = None
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """One forward pass: features (N, d), logits (N, k), and the shape of the model's output.

    N is the number of inputs, or of all their positions.

    `checks`: they raise if the logits are not the output of the head. This depends on values, so it cannot
    be traced: leave it out in a module that is to be exported or compiled.
    """
    if head.differences:
        return _forward_differences(model, head, inputs, checks)
    return _forward_inputs(model, head, inputs, checks)


def _forward_differences(
    model: nn.Module, head: Head, inputs: Inputs, checks: DeferredChecks | None
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """φ(a) − φ(b) and w·(φ(a) − φ(b)) for a pair, φ(x) and w·φ(x) for one input: without the bias.

    The logits are not differences of the model's outputs, which lose digits if they are large.
    """
    features: list[Tensor] = []
    constants: list[Tensor] = []
    shape: tuple[int, ...] = ()
    own = head.of_inputs(model)
    for each in pair_for(model, inputs) or (inputs,):
        found, _, shape = _forward_inputs(model, own, each, checks)
        found = found.to(prediction_dtype(found.dtype))
        if head.parts:
            found, constant = head.features_and_constants(model, found)
            constants.append(constant)
        features.append(found)
    if len(constants) == 2 and checks is not None:
        checks.add((constants[0] == constants[1]).all(), _refuse_bias)
    rows = features[0] if len(features) == 1 else features[0] - features[1]
    with without_autocast(rows.device):
        logits = functional.linear(rows, head.weights(model).to(rows))
    return rows, logits, shape


def _refuse_bias() -> None:
    raise ModelError(
        "the bias of the head does not cancel in the difference of two rewards: what the model does to it "
        "depends on the input (a sum over tokens?). Give a head without a bias"
    )


def _forward_inputs(
    model: nn.Module, head: Head, inputs: Inputs, checks: DeferredChecks | None
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """`forward` for one input at each point."""
    if head.parts:
        return _forward_composite(model, head, inputs, checks)
    calls: list[tuple[Tensor, Tensor]] = []
    module = model.get_submodule(head.name)
    with call_hooks({head.name: module}, lambda _, *seen: calls.append(seen)):
        output = call(model, inputs)
    if not calls:
        raise ModelError(f"the model did not call its linear layer {head.name!r} at this input")
    features, result = calls[-1]
    positions = output.dim() + head.layout.squeezed > 2
    if not is_batch(module, features) or positions != head.layout.positions:
        raise ModelError(
            f"the head {head.name!r} sees features of shape {tuple(features.shape)}: expected (n, d). Give "
            "the model a batch: one point is x[None]"
        )
    features = rows_of(features, feature_axis(module))
    if checks is not None:
        checks.add(equal_values(result, output), partial(_refuse_output, head))
    return features, head.layout.flatten(output, features.shape[0], head.outputs), tuple(output.shape)


def _refuse_output(head: Head, logits: Tensor | None = None) -> None:
    if logits is not None and not bool(logits.isfinite().all()):
        return  # callers check this, and say what is not finite
    raise ModelError(
        f"the model's output is not the output of its linear layer {head.name!r} at every input: what "
        "comes after that layer changes it. Give the part that returns plain logits"
    )


def _forward_composite(
    model: nn.Module, head: Head, inputs: Inputs, checks: DeferredChecks | None
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """`forward` for a composite head."""
    output = composite_output(model, head.modules(model), inputs)
    rows = output.movedim(head.layout.axis, -1).flatten(0, -2)
    features, logits = rows[:, : head.inputs], rows[:, head.inputs :]
    if logits.shape[1] != head.outputs:
        raise ModelError(f"the model did not call all of its linear layers {head.parts} at this input")
    if checks is not None:
        few = slice(None, None, max(1, len(rows) // CHECKED_ROWS))
        checks.add(
            computes(head.weights(model), None, features[few], logits[few]),
            partial(_refuse_output, head, logits[few]),
        )
    shape = list(output.shape)
    shape[head.layout.axis] = head.outputs
    if head.layout.squeezed:
        del shape[head.layout.axis]
    return features, logits, tuple(shape)
