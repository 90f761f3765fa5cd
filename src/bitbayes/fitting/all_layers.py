"""One pass forward and c passes back for each batch → the sums of all layers.

c = k − 1 for the exact curvature, and the number of drawn labels for the Fisher estimate.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError
from bitbayes.fitted import Fitted
from bitbayes.fitting.data import FitRequest, TrainingData
from bitbayes.fitting.level_totals import LevelTotals
from bitbayes.likelihoods import Likelihood, likelihood_for
from bitbayes.model import (
    DeferredChecks,
    Inputs,
    Layer,
    SideEffects,
    TrainableLayers,
    check_finite,
    check_rows,
    detect_changes,
    differentiate,
    find_layers,
    none_called,
    points_at_once,
    private_copy,
    tied_to,
    verify_layers,
    working_dtype,
)
from bitbayes.options import SAMPLED_NETWORKS, Fisher
from bitbayes.precision import to_float64, without_autocast
from bitbayes.processes import current_processes
from bitbayes.structures import (
    CURVATURES,
    WHOLE_NETWORK,
    FullCurvature,
    KronCurvature,
    check_affordable,
    layer_curvatures,
)

# Primes, so that the seeds of different points and processes do not coincide.
SEED_OF_POINTS, SEED_OF_RANK = 1_000_003, 15_485_863


@torch.inference_mode(False)
@torch.no_grad()
def fit_all_layers(request: FitRequest) -> Fitted:
    """The sums over the data of this pass alone. Nothing is changed."""
    model, options, chosen = request.model, request.options, request.chosen
    data = TrainingData(request)
    structure = "kron" if options.structure == "auto" else options.structure
    # Raises on models that have none, or whose derivatives cannot be taken.
    layers = find_layers(model, options.layer_names) if chosen is None else chosen.layers
    network, totals = private_copy(model, SideEffects.any_of(model)), data.totals
    with without_autocast(data.device), detect_changes(model, network) as run, DeferredChecks() as checks:
        with none_called(model):
            steady = check_rows(network, data.some_rows)
            if chosen is None:
                outputs, layers = _checked_layers(network, layers, data.preview, structure)
            else:  # their layers were checked when they were chosen
                outputs = chosen.outputs
            levels = LevelTotals.of(
                options, network, data.preview, None, totals.level_sums, resumed=totals.batches > 0
            )
        likelihood = likelihood_for(outputs, options.likelihood)
        if not likelihood.over_all_layers:
            raise ModelError(f"likelihood={likelihood.name!r} needs layers='last'")
        if likelihood.labels_are_classes:
            levels.expect_classes(likelihood.classes(outputs))
        if options.predictive != SAMPLED_NETWORKS:
            likelihood.predictive_name(options.predictive, outputs)  # raises now, not after the pass
        fisher = options.fisher(outputs)
        directions = _directions(data, likelihood, fisher)
        passes = outputs if fisher is None else fisher.draws
        # From the first batch, also in a resumed pass: the sums do not depend on where it was interrupted.
        rows = points_at_once(network, layers, data.preview, passes)
        for batch in data:
            assert batch.labels is not None
            labels = likelihood.check_labels(batch.labels, (len(batch), outputs), batch.name, checks)
            checks.settle()  # waiting costs little beside the derivatives
            levels.add_run(batch, network, labels)  # a pass costs little beside them, too
            totals.level_sums = levels.sums
            for part in batch.split(rows) if isinstance(batch.inputs, Tensor) else [batch]:
                logits, records = differentiate(network, layers, part.inputs, directions)
                check_finite(part, logits, logits, network)
                own, labels = labels[: len(logits)], labels[len(logits) :]
                curvature = layer_curvatures(structure, records, part.weights)
                totals.add_points(likelihood, to_float64(logits), own, curvature, part.weights)
            if request.checkpointer is not None:
                request.checkpointer.write_if_due(totals, lambda: None)
    totals.check_overflow(working_dtype(model))
    parameters = {layer.name: _uncertain(model, layer) for layer in layers}
    if issubclass(CURVATURES[structure], FullCurvature):
        parameters = {WHOLE_NETWORK: [each for own in parameters.values() for each in own]}
    weights = TrainableLayers(outputs, layers)
    fitted = totals.as_fitted(weights, likelihood, parameters, request, run, levels.levels)
    return data.with_known_outputs(fitted) if steady else fitted


def _directions(
    data: TrainingData, likelihood: Likelihood, fisher: Fisher | None
) -> Callable[[Tensor], Tensor]:
    """A function from logits to V (n, k, c) with V Vᵀ = Λₙ; on average, if labels are drawn."""
    request, totals = data.request, data.totals
    if fisher is None:
        return lambda logits: likelihood.root(logits.double())
    if totals.generator is None:  # different random numbers in each process
        seed = fisher.seed + SEED_OF_POINTS * request.seen + SEED_OF_RANK * current_processes().rank
        totals.generator = torch.Generator(data.device).manual_seed(seed)
    generator, draws = totals.generator, fisher.draws
    return lambda logits: torch.stack(
        [likelihood.draw(logits.double(), generator) / math.sqrt(draws) for _ in range(draws)], dim=2
    )


def _checked_layers(
    model: nn.Module, layers: tuple[Layer, ...], preview: Inputs, structure: str
) -> tuple[int, tuple[Layer, ...]]:
    """The number of outputs and the layers; raises, before any pass, if the structure does not allow them."""
    kind = CURVATURES[structure]
    if issubclass(kind, FullCurvature):
        check_affordable(layers)
    if issubclass(kind, KronCurvature):
        _refuse_other_layers(model, layers)
    outputs, layers = verify_layers(model, layers, preview)
    if issubclass(kind, KronCurvature):
        _refuse_other_layers(model, layers)
    return outputs, layers


def _uncertain(model: nn.Module, layer: Layer) -> list[Tensor]:
    """The parameters that are uncertain; in one tensor if some of the layer's were chosen."""
    own = [model.get_parameter(name).detach() for name in layer.names]
    return own if layer.chosen is None else [layer.join(each[None] for each in own)]


def _refuse_other_layers(model: nn.Module, layers: tuple[Layer, ...]) -> None:
    for layer in layers:
        if layer.kind != "other":
            continue
        kind = type(model.get_submodule(layer.name)).__name__
        reason = "has no Kronecker factors here (linear layers, 1d and 2d convolutions and norms have)"
        if kind in ("Linear", "Conv1d", "Conv2d"):
            reason = "is not called, is used in an unusual way, or does not see one row for each input"
        if ties := tied_to(model, layer):
            reason = f"shares parameters with {', '.join(map(repr, ties))}"
        raise ModelError(
            f"the layer {layer.name!r} ({kind}) {reason}: freeze it (requires_grad_(False)), or use "
            "structure='diag'"
        )
