"""Fitting: one pass over data → all that is learned from it, for the last layer or for all layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.curvature import STRUCTURES, Curvature, NetworkCurvature, check_width, network_sums
from bitbayes.errors import DataError, ModelError
from bitbayes.likelihood import Likelihood, likelihood_for
from bitbayes.logits import with_bias
from bitbayes.model import (
    Fingerprint,
    Head,
    Inputs,
    Layer,
    Network,
    PreviewedLoader,
    batches,
    check_finite,
    cut,
    differentiate,
    eval_mode,
    find_head,
    find_layers,
    fingerprint,
    grouped,
    model_device,
    observe,
    points_at_once,
    row_count,
    tied_to,
    verify_layers,
)
from bitbayes.precision import precise, without_autocast, working
from bitbayes.predictive import method_for
from bitbayes.progress import track
from bitbayes.rays import InputMoments

SEED = 0
# Features wait until they are worth one matrix product. Bytes, not batches, so that memory is bounded.
FIT_BYTES = 2**25


@dataclass(frozen=True)
class Fitted:
    """All that `fit` learns: what is uncertain, the curvature, and what the evidence needs beside it."""

    part: Head | Network
    likelihood: Likelihood
    curvature: Curvature | NetworkCurvature
    count: int
    loss: float
    squared_norm: float
    fingerprint: Fingerprint
    inputs: InputMoments | None = None  # of the training data, for the residual

    def __add__(self, more: Fitted) -> Fitted:
        """What both data sets give, for the same model, which may have moved to another device since."""
        return replace(
            self,
            curvature=_beside(self.curvature, more.curvature) + more.curvature,
            count=self.count + more.count,
            loss=self.loss + more.loss,
            inputs=_beside(self.inputs, more.inputs) + more.inputs if self.inputs and more.inputs else None,
        )


def _beside(sums: Any, others: Any) -> Any:
    """The sums where the others are."""
    if isinstance(sums, NetworkCurvature):
        where = {name: sums.sums[name].to(value.device) for name, value in others.sums.items()}
        return replace(sums, sums=where)
    return replace(
        sums, **{name: value.to(getattr(others, name).device) for name, value in vars(sums).items()}
    )


@torch.no_grad()
def fit_last_layer(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    structure: str,
    likelihood: str,
    predictive: str,
    head: str | None,
    progress: bool | None,
) -> Fitted:
    """One forward pass → what that data alone gives."""
    loader = PreviewedLoader(loader, model_device(model))
    with eval_mode(model):
        found = find_head(model, loader.few, head)
    chosen = likelihood_for(likelihood, found.outputs)
    method_for(predictive, found.outputs)  # raises now rather than after the pass
    auto = "full" if found.outputs == 1 else "kron"
    kind = STRUCTURES[auto if structure == "auto" else structure]
    curvature: Curvature | None = None
    count, loss = 0, 0.0
    points = observe(model, found, track(loader, "fitting", progress), chosen.check)
    for features, logits, labels in grouped(points, FIT_BYTES):
        count += len(labels)
        loss += float(chosen.losses(logits.double(), labels).sum())
        features = with_bias(features.to(working(features.dtype)), found.bias)
        more = kind.of(features, logits, chosen)
        curvature = more if curvature is None else curvature + more  # type: ignore[operator]
    assert curvature is not None  # `PreviewedLoader` raises on an empty loader
    # In the dtype of predictions, to which their decomposition will come.
    if not all(bool(sums.to(working(features.dtype)).isfinite().all()) for sums in vars(curvature).values()):
        raise DataError(
            f"the squares of the training data's features overflow {working(features.dtype)}: fit the model "
            "in float64, or scale its inputs down"
        )
    layer = found.module(model)
    # Not its parameters: a weight norm has others, of which it makes the weight.
    weights = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
    squared_norm = sum(float(weight.double().square().sum()) for weight in weights)
    return Fitted(found, chosen, curvature, count, loss, squared_norm, fingerprint(model))


@torch.inference_mode(False)
@torch.no_grad()
def fit_all_layers(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    structure: str,
    likelihood: str,
    predictive: str,
    fisher: bool,
    draws: int,
    generator: torch.Generator | None,
    progress: bool | None,
) -> Fitted:
    """One pass forward and c passes back for each batch → what that data alone gives.

    c = k − 1 for the exact curvature; `draws` for the Fisher estimate.
    """
    device = model_device(model)
    peeked = PreviewedLoader(loader, device)
    with eval_mode(model), without_autocast(device):
        outputs, layers = _understood(model, peeked.few, structure)
        chosen = likelihood_for(likelihood, outputs)
        if predictive != "weights":
            method_for(predictive, outputs)  # raises now rather than after the pass
        if fisher and generator is None:
            generator = torch.Generator(device).manual_seed(SEED)
        directions = _directions(chosen, draws if fisher else None, generator)
        sums: dict[str, Tensor] = {}
        count, loss, rows = 0, 0.0, None
        for number, (inputs, labels) in enumerate(batches(track(peeked, "fitting", progress), device)):
            if rows is None:
                rows = points_at_once(model, layers, inputs, draws if fisher else outputs)
            labels = chosen.check(labels, torch.empty(row_count(inputs), outputs), number)
            for part in cut(inputs, rows):
                logits, recorded = differentiate(model, layers, part, directions)
                check_finite(f"batch {number}", part, logits, logits, model)
                now, labels = labels[: len(logits)], labels[len(logits) :]
                count += len(now)
                loss += float(chosen.losses(logits.double(), now).sum())
                for name, more in network_sums(structure, recorded).items():
                    sums[name] = (
                        sums[name].add_(more.to(sums[name].device)) if name in sums else precise(more)
                    )
    norms = tuple(
        sum(float(model.get_parameter(name).double().square().sum()) for name in layer.names)
        for layer in layers
    )
    curvature = NetworkCurvature(structure, sums)
    network = Network(outputs, layers, norms)
    return Fitted(network, chosen, curvature, count, loss, sum(norms), fingerprint(model))


def _directions(
    likelihood: Likelihood, draws: int | None, generator: torch.Generator | None
) -> Callable[[Tensor], Tensor]:
    """V (n, k, c) with V Vᵀ = Λₙ, or so on average over drawn labels."""
    if draws is None:
        return lambda logits: likelihood.root(logits.double())
    return lambda logits: torch.stack(
        [likelihood.draw(logits.double(), generator) / math.sqrt(draws) for _ in range(draws)], dim=2
    )


def _understood(model: nn.Module, few: Inputs, structure: str) -> tuple[int, tuple[Layer, ...]]:
    """The number of outputs and the layers; raises, before any pass, on what the structure cannot have."""
    layers = find_layers(model)
    if structure == "full":
        check_width(layers)
    if structure == "kron":
        _refuse_others(model, layers)
    outputs, layers = verify_layers(model, layers, few)
    if structure == "kron":
        _refuse_others(model, layers)
    return outputs, layers


def _refuse_others(model: nn.Module, layers: tuple[Layer, ...]) -> None:
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
