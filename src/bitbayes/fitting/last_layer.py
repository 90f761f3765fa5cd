"""One forward pass → the sums of the last layer."""

from collections.abc import Iterable

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, ModelError
from bitbayes.fitted import Fitted
from bitbayes.fitting.affordable import affordable_structure
from bitbayes.fitting.data import FitRequest, TrainingData
from bitbayes.fitting.level_totals import LevelTotals
from bitbayes.likelihoods import likelihood_for
from bitbayes.model import (
    DeferredChecks,
    FeaturePasses,
    Head,
    Level,
    SideEffects,
    check_rows,
    detect_changes,
    find_head,
    none_called,
    private_copy,
)
from bitbayes.precision import prediction_dtype, to_float64
from bitbayes.residual import LevelSums

# Features are collected until one matrix product is worthwhile. Bytes, not batches, so that memory is
# bounded. A GPU needs more of them to amortise kernel launches.
FIT_BYTES, GPU_FIT_BYTES = 2**25, 2**27
# Peak memory as a multiple of the collected features: logits, copies in float64, and products.
COPIES = 10

# Features (n, d), logits (n, k), labels (n,) and, if there are any, weights (n,) of some points.
Points = tuple[Tensor, ...]


@torch.no_grad()
def fit_last_layer(request: FitRequest) -> Fitted:
    """The sums over the data of this pass alone. Nothing is changed."""
    model, options = request.model, request.options
    data = TrainingData(request)
    with none_called(model):
        network = private_copy(model, SideEffects.any_of(model))
        head = find_head(network, data.preview, options.head)
        first, *_ = head.parts or (head.name,)
        levels = LevelTotals.of(
            options, network, data.preview, first, data.totals.level_sums, resumed=data.totals.batches > 0
        )
    steady = check_rows(network, data.some_rows)
    # Not its parameters: a weight norm or an adapter computes the weight from others.
    weights = head.parts_of_weights(network)
    budget = GPU_FIT_BYTES if data.device.type == "cuda" else FIT_BYTES
    likelihood = likelihood_for(head.outputs, options.likelihood)
    structure = options.structure
    # "kron" is exact where all outputs have the same curvature, and "lowrank" is for a softmax.
    if likelihood.has_noise or (head.outputs > 1 and not likelihood.has_softmax):
        if structure == "lowrank":
            raise ArgumentError(
                f"structure='lowrank' is for many classes: use structure='kron' for "
                f"likelihood={likelihood.name!r}"
            )
        structure = "kron" if structure == "auto" else structure
    kind = affordable_structure(structure, head, data.device, COPIES * budget)
    if request.weighted and not kind.takes_weights:
        raise ArgumentError(
            f"weighted=True does not fit structure={kind.structure!r}: use structure='kron' or 'diag'"
        )
    pairs = kind.has_cross_covariance
    likelihood.predictive_name(options.predictive, head.outputs, has_cross_covariance=pairs)  # raises early

    if head.layout.positions and not likelihood.has_positions:
        raise ModelError(
            f"likelihood={likelihood.name!r} needs one row of outputs for each input, and this model's "
            "output has positions"
        )
    if likelihood.labels_are_classes and not (head.layout.positions or likelihood.of_pairs):
        levels.expect_classes(likelihood.classes(head.outputs))
    if head.layout.positions:  # if there are many, logits take memory, too
        budget = budget * head.inputs // (head.inputs + head.outputs)
    totals, waiting, held = data.totals, list[Points](), 0
    with detect_changes(model, network) as run, DeferredChecks() as checks:
        passes = FeaturePasses(network, head, checks, some=totals.count > 0)

        def add_waiting() -> None:
            added = levels.add_waiting()
            for features, logits, labels, *weighted in _joined(waiting, head, budget):
                logits = to_float64(logits)
                # The products of the same features, if they were computed for the residual already.
                known = None if added is None or weighted else _moments(added, head, levels.levels[-1])
                curvature = None if known is None else kind.of_moments(known, logits, likelihood)
                if curvature is None:
                    make = kind.of_weighted_features if weighted else kind.of_features
                    curvature = make(_with_bias(features, head), logits, likelihood, *weighted)
                totals.add_points(likelihood, logits, labels, {head.name: curvature}, *weighted)
            totals.level_sums = levels.sums
            if request.checkpointer is not None:  # here the sums hold every batch that was read
                request.checkpointer.write_if_due(totals, checks.settle)

        for batch in data:
            points = passes.run(levels.attach(batch))
            if points is not None:
                points = points.observed()
                assert points.labels is not None
                shape = len(points.logits), head.outputs
                labels = likelihood.check_labels(points.labels, shape, points.name, checks)
                levels.add_labels(labels)
                own = [] if points.weights is None else [points.weights]
                waiting.append((points.features, points.logits, labels, *own))
                held += max(tensor.nbytes for tensor in waiting[-1])
                if held >= budget:
                    add_waiting()
                    waiting, held = [], 0
                checks.end_batch()
        if passes.skipped:
            passes.refuse_no_points()
        add_waiting()
    totals.check_overflow(prediction_dtype(weights[0].dtype))
    fitted = totals.as_fitted(head, likelihood, {head.name: weights}, request, run, levels.levels)
    return data.with_known_outputs(fitted) if steady else fitted


def _with_bias(features: Tensor, head: Head) -> Tensor:
    """φ̃ (n, D), in the prediction dtype: the features and, if there is a bias, its constant 1."""
    features = features.to(prediction_dtype(features.dtype))
    return torch.cat([features, torch.ones_like(features[:, :1])], dim=1) if head.bias else features


def _moments(sums: LevelSums, head: Head, level: Level) -> Tensor | None:
    """Σ φ̃φ̃ᵀ (D, D) of the points with these sums, if their level is the input of the head."""
    same = level.layer == head.name and sums.products.shape == (head.inputs, head.inputs)
    if head.parts or head.layout.positions or head.differences or not same:
        return None
    total = sums.count * sums.mean
    moments = torch.addmm(sums.products, total[:, None], sums.mean[None])
    if not head.bias:
        return moments
    edge = torch.cat([total, sums.count[None]])[:, None]
    return torch.cat([torch.cat([moments, total[None]]), edge], dim=1)


def _joined(waiting: list[Points], head: Head, size: int) -> Iterable[Points]:
    """The collected points, in as few parts as memory allows: `size` bytes of features each."""
    if not waiting:
        return []
    joined = waiting[0]
    if len(waiting) > 1:  # otherwise it would be copied
        joined = tuple(torch.cat(column) for column in zip(*waiting, strict=True))
    if not head.layout.positions:
        return [joined]
    # A batch of images may hold a million positions.
    rows = max(1, size // (head.inputs * joined[0].element_size()))
    return zip(*(torch.split(each, rows) for each in joined), strict=True)
