"""One forward pass → the sums of the last layer."""

from collections.abc import Iterable

import torch
from torch import Tensor

from bitbayes.fitted import Fitted
from bitbayes.fitting.affordable import check_memory, check_size, structure_for
from bitbayes.fitting.request import FitRequest
from bitbayes.fitting.training_data import TrainingData
from bitbayes.likelihoods import likelihood_for
from bitbayes.logits import with_bias
from bitbayes.model import (
    DeferredChecks,
    FeaturePasses,
    Head,
    detect_changes,
    find_head,
    none_called,
    private_copy,
)
from bitbayes.precision import prediction_dtype, to_float64

# Features wait until they are worth one matrix product. Bytes, not batches, so that memory is bounded. On a
# GPU, where a product is fast, adding it up and what else is done once for each takes a larger share.
FIT_BYTES, GPU_FIT_BYTES = 2**25, 2**27
# Peak memory as a multiple of the waiting features: with their logits, in float64, and what is made of them.
COPIES = 10

# Features (n, d), logits (n, k) and labels (n,) of some points.
Points = tuple[Tensor, Tensor, Tensor]


@torch.no_grad()
def fit_last_layer(request: FitRequest) -> Fitted:
    """What the data of this pass alone give. Changes nothing."""
    model, options = request.model, request.options
    data = TrainingData(request)
    with none_called(model):
        head = find_head(private_copy(model), data.preview, options.head)
    likelihood = likelihood_for(head.outputs, options.likelihood)
    kind = structure_for(options.structure, head)
    pairs = kind.has_cross_covariance
    likelihood.predictive_name(options.predictive, head.outputs, has_cross_covariance=pairs)  # raises early
    size = GPU_FIT_BYTES if request.device.type == "cuda" else FIT_BYTES
    check_size(kind, head)
    check_memory(kind, head, request.device, COPIES * size)

    totals = data.totals
    waiting = Waiting(head, size)
    with detect_changes(model) as run, DeferredChecks() as checks:
        passes = FeaturePasses(model, head, checks, some=totals.count > 0)

        def add_waiting() -> None:
            for features, logits, labels in waiting.taken():
                features = with_bias(features.to(prediction_dtype(features.dtype)), head.bias)
                logits = to_float64(logits)
                curvature = {head.name: kind.of_features(features, logits, likelihood)}
                totals.add_points(logits, labels, likelihood, curvature)
            if request.keeper is not None:  # a batch that was read is summed up, or is not
                request.keeper.keep_if_due(totals, checks.settle)

        for batch in data:
            totals.add_inputs(model, options, batch.inputs)
            points = passes.run(batch)
            if points is not None:
                assert points.labels is not None
                shape = len(points.logits), head.outputs
                labels = likelihood.check_labels(points.labels, shape, points.name, checks)
                if waiting.add((points.features, points.logits, labels)):
                    add_waiting()
                checks.end_batch()
        passes.end()
        add_waiting()
    # Not its parameters: a weight norm and an adapter have others, of which they make the weight.
    weights = head.parts_of_weights(model)
    totals.check_overflow(prediction_dtype(weights[0].dtype))
    return totals.as_fitted(head, likelihood, {head.name: weights}, request, run)


class Waiting:
    """Points that wait until they are worth one product: one over a thousand rows costs little more than one
    over a hundred.

    Args:
        head: the head.
        size: bytes of the largest tensors that are enough.
    """

    def __init__(self, head: Head, size: int) -> None:
        self.head, self.points, self.held = head, list[Points](), 0
        # Where there are many positions, the logits take memory, too.
        positions = head.layout.positions
        self.size = size * head.inputs // (head.inputs + head.outputs) if positions else size

    def add(self, points: Points) -> bool:
        """Whether there is enough now."""
        self.points.append(points)
        self.held += max(tensor.nbytes for tensor in points)
        return self.held >= self.size

    def taken(self) -> Iterable[Points]:
        """All points that have waited, in as few parts as memory allows."""
        points, self.points, self.held = self.points, [], 0
        if not points:
            return ()
        joined: tuple[Tensor, ...] = points[0]
        if len(points) > 1:  # a single one would be copied
            joined = tuple(torch.cat(column) for column in zip(*points, strict=True))
        if not self.head.layout.positions:
            return [joined]  # type: ignore[list-item]
        # A batch of images may hold a million positions.
        rows = max(1, self.size // (self.head.inputs * joined[0].element_size()))
        return zip(*(torch.split(each, rows) for each in joined), strict=True)
