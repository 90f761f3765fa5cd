"""Fitting: one pass over data → all that is learned from it, for the last layer or for all layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError, EmptyLoaderError, ModelError, NotEnoughMemoryError
from bitbayes.likelihood import Likelihood, checked_labels, likelihood_for
from bitbayes.logits import with_bias
from bitbayes.model import (
    Batch,
    Fingerprint,
    Head,
    Inputs,
    LateChecks,
    Layer,
    PreviewedLoader,
    TrainableLayers,
    check_finite,
    check_loader,
    differentiate,
    find_head,
    find_layers,
    fingerprint,
    fingerprinted,
    forward_passes,
    free_bytes,
    grouped,
    labelled_batches,
    model_device,
    none_called,
    own_points,
    points_at_once,
    private_copy,
    tied_to,
    verify_layers,
    without_repeats,
    working_dtype,
)
from bitbayes.options import Fisher, Options
from bitbayes.precision import precise, without_autocast, working
from bitbayes.predictive import method_for
from bitbayes.processes import together
from bitbayes.progress import track
from bitbayes.residual import InputMoments, as_rows, measurable, moments_of
from bitbayes.structures import CURVATURES, WHOLE_NETWORK, Curvature, check_affordable, layer_curvatures

# Features wait until they are worth one matrix product. Bytes, not batches, so that memory is bounded. On a
# GPU, where a product is fast, adding it up and what else is done once for each takes a larger share.
FIT_BYTES, GPU_FIT_BYTES = 2**25, 2**27
# Such features and their logits, in float64 and with what is made of them, take so many times their bytes.
COPIES = 10
# Numbers whose squares are summed at once.
NORM_NUMBERS = 2**24
# Up to so many classes "auto" keeps the whole Kronecker factor over the classes, at the price of their cube.
MANY_CLASSES = 4096
# The largest matrix that is decomposed, by its side: 3 GB, and some minutes on a good machine.
LARGEST_SIDE = 20_000


@dataclass(frozen=True)
class Fitted:
    """All that `fit` learns: sums over data, with no prior in them, and which weights they are about.

    curvature: by the name of the layer, or one for all layers (`structures.WHOLE_NETWORK`).
    squared_norms: ‖θ*‖² of the weights in each of these.
    loss: −Σ log p(y | x) of the data.
    input_moments: of the training data, where there is a residual.
    living: the names of buffers that running the model changes.
    """

    weights: Head | TrainableLayers
    likelihood: Likelihood
    curvature: dict[str, Curvature]
    squared_norms: dict[str, float]
    count: int
    loss: float
    fingerprint: Fingerprint
    input_moments: InputMoments | None
    living: tuple[str, ...] = ()

    def told(self) -> str:
        """In words, by which processes know whether they hold the same: fits of other data differ in them."""
        return f"{self.count:,} points with a loss of {self.loss}"

    def __add__(self, more: Fitted) -> Fitted:
        """What both data sets give, for the same model, which may have moved to another device since."""
        self._check_same_model(more)
        curvature = {
            name: self.curvature[name].to(_device(theirs)) + theirs for name, theirs in more.curvature.items()
        }
        moments = None
        if self.input_moments is not None:
            if more.input_moments is None:
                raise DataError(
                    f"these inputs are not all of {len(self.input_moments.mean)} finite numbers, as those of "
                    "`fit` are: the residual needs that, and residual=False does not"
                )
            moments = self.input_moments.to(more.input_moments.mean.device) + more.input_moments
        return replace(
            self,
            curvature=curvature,
            count=self.count + more.count,
            loss=self.loss + more.loss,
            input_moments=moments,
        )

    def without(self, part: Fitted, most: float) -> Fitted:
        """What the data give that are left when a part of them is taken out.

        Raises a `DataError` if that part is all but 1/`most` of a sum: see `check_digits`.
        """
        self._check_same_model(part)
        if part.count >= self.count:
            raise DataError(
                f"{part.count:,} points are to be taken out, of {self.count:,} that were fitted: none would "
                "be left"
            )
        curvature = {
            name: each.without(part.curvature[name].to(_device(each)), most)
            for name, each in self.curvature.items()
        }
        moments = self.input_moments
        if moments is not None:
            if part.input_moments is None:
                raise DataError(
                    "what is to be taken out was fitted without a residual, and the whole with one: fit that "
                    "part again with the same options"
                )
            moments = moments.without(part.input_moments.to(moments.mean.device), most)
        return replace(
            self,
            curvature=curvature,
            count=self.count - part.count,
            loss=max(0.0, self.loss - part.loss),
            input_moments=moments,
        )

    def _check_same_model(self, other: Fitted) -> None:
        if other.fingerprint != self.fingerprint or other.weights != self.weights:
            raise ModelError(
                "the model, or what of it is frozen, has changed since `fit`: call `fit` again, on all data"
            )


def _device(curvature: Curvature) -> torch.device | None:
    return next((tensor.device for tensor in curvature.tensors().values()), None)


@dataclass
class Totals:
    """The sums on their way through a pass.

    batches, rows: how many of them were read, and the inputs in them.
    generator: of the labels that are drawn, if any are.
    """

    curvature: dict[str, Curvature] = field(default_factory=dict)
    count: int = 0
    loss: Tensor | float = 0.0
    input_moments: InputMoments | None = None
    batches: int = 0
    rows: int = 0
    generator: torch.Generator | None = None

    def add_points(self, logits: Tensor, labels: Tensor, likelihood: Likelihood) -> None:
        self.count += len(labels)
        self.loss = self.loss + likelihood.losses(precise(logits), labels).sum()

    def add_curvature(self, curvature: dict[str, Curvature]) -> None:
        for name, more in curvature.items():
            if name in self.curvature:
                self.curvature[name].add_(more)
            else:
                self.curvature[name] = more.precise()

    def counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, counted as they are read."""
        for batch in batches:
            assert batch.labels is not None
            self.batches += 1
            self.rows += len(batch.labels)  # not those of the inputs, which may be texts in a list
            yield batch

    def with_inputs(self, model: nn.Module, options: Options, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches; their inputs are added up before the model, which may work in place, sees them."""
        # Points without moments: a batch before this pass was resumed had none.
        wanted = bool(options.residual) and not (self.count and self.input_moments is None)
        for batch in batches:
            if wanted and not options.residual_asked:
                wanted = measurable(batch.inputs) and self._one_size(batch.inputs)
            if wanted:
                more = moments_of(model, options.residual_layers, batch.inputs)
                self.input_moments = more if self.input_moments is None else self.input_moments + more
            else:
                self.input_moments = None
            yield batch

    def _one_size(self, inputs: Inputs) -> bool:
        """Whether the inputs have as many numbers as those before them."""
        return self.input_moments is None or as_rows(inputs).shape[1] == len(self.input_moments.mean)


class Keeper(Protocol):
    """Keeps the sums of a pass on their way, so that one which was interrupted can be resumed."""

    def begin(self, loader: Iterable[Any], device: torch.device) -> tuple[Iterable[Any], Totals]:
        """What is left of the loader, after its first batch, and the sums over what was read before."""

    def keep_if_due(self, totals: Totals, check: Callable[[], None]) -> None:
        """Keep the sums, if the last time was long ago, after `check` has not raised."""


@torch.no_grad()
def fit_last_layer(
    model: nn.Module,
    loader: Iterable[Any],
    options: Options,
    progress: bool | None,
    seen: int = 0,
    keeper: Keeper | None = None,
) -> Fitted:
    """One forward pass → what that data alone gives, whatever was `seen` before. Changes nothing."""
    own = own_points(loader)
    loader, totals = _begun(model, loader, options, keeper)
    network = private_copy(model)
    with none_called(model):
        head = find_head(network, loader.preview, options.head)
    likelihood = likelihood_for(head.outputs)
    kind = CURVATURES[_structure(options, head)]
    method_for(options.predictive, head.outputs, pairs=kind.knows_pairs)  # raises now, not after the pass
    _check_size(kind, head)
    size = GPU_FIT_BYTES if model_device(model).type == "cuda" else FIT_BYTES
    _check_memory(kind, head, model_device(model), COPIES * size)
    checks = LateChecks()
    if head.layout.positions:  # of features: where these are many, so are the logits
        size = size * head.inputs // (head.inputs + head.outputs)

    def points() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        batches = _batches(model, loader, own, totals, progress)
        batches = totals.with_inputs(model, options, batches)
        for batch in forward_passes(model, head, batches, checks, some=totals.count > 0):
            yield batch.features, batch.logits, checked_labels(batch, likelihood, head.outputs, checks)

    def parts(group: tuple[Tensor, ...]) -> Iterable[tuple[Tensor, ...]]:
        """Positions are many: a batch of images may hold a million of them."""
        if not head.layout.positions:
            return [group]
        rows = max(1, size // (head.inputs * group[0].element_size()))
        return zip(*(torch.split(each, rows) for each in group), strict=True)

    with fingerprinted(model) as known, checks:
        for group in grouped(points(), size):
            for features, logits, labels in parts(group):
                logits = precise(logits)
                totals.add_points(logits, labels, likelihood)
                features = with_bias(features.to(working(features.dtype)), head.bias)
                totals.add_curvature({head.name: kind.of_features(features, logits, likelihood)})
            if keeper is not None:  # not between the parts: a batch that was read is summed up, or is not
                keeper.keep_if_due(totals, checks.settle)
    # Not its parameters: a weight norm and an adapter have others, of which they make the weight.
    weights = head.parts_of_weights(model)
    _check_overflow(totals.curvature, working(weights[0].dtype))
    norm = _squared_norm(weights)
    return _fitted(head, likelihood, totals, {head.name: norm}, options, known())


@torch.inference_mode(False)
@torch.no_grad()
def fit_all_layers(
    model: nn.Module,
    loader: Iterable[Any],
    options: Options,
    progress: bool | None,
    seen: int = 0,
    keeper: Keeper | None = None,
) -> Fitted:
    """One pass forward and c passes back for each batch → what that data alone gives. Changes nothing.

    c = k − 1 for the exact curvature, and the number of drawn labels for the Fisher estimate. After `seen`
    points other random numbers are drawn than after none, so that `update` adds independent draws.
    """
    device = model_device(model)
    own = own_points(loader)
    loader, totals = _begun(model, loader, options, keeper)
    structure = "kron" if options.structure == "auto" else options.structure
    layers = find_layers(model)  # raises on models that have none, or whose derivatives cannot be taken
    network = private_copy(model)
    with without_autocast(device):
        with none_called(model):
            outputs, layers = _checked_layers(network, layers, loader.preview, structure)
        likelihood = likelihood_for(outputs)
        if options.predictive != "weights":
            method_for(options.predictive, outputs)  # raises now rather than after the pass
        directions = _directions(likelihood, options.fisher, device, seen, totals)
        passes = options.fisher.draws if options.fisher else outputs
        # By the first batch, also where the pass is resumed: the sums do not depend on when that was.
        rows = points_at_once(network, layers, loader.preview, passes)
        batches = _batches(model, loader, own, totals, progress)
        for batch in totals.with_inputs(network, options, batches):
            labels = checked_labels(batch, likelihood, outputs)
            for part in batch.split(rows) if isinstance(batch.inputs, Tensor) else [batch]:
                logits, records = differentiate(network, layers, part.inputs, directions)
                check_finite(part, logits, logits, network)
                now, labels = labels[: len(logits)], labels[len(logits) :]
                totals.add_points(logits, now, likelihood)
                totals.add_curvature(layer_curvatures(structure, records))
            if keeper is not None:
                keeper.keep_if_due(totals, lambda: None)
    _check_overflow(totals.curvature, working_dtype(model))
    norms = {
        layer.name: _squared_norm([model.get_parameter(name) for name in layer.names]) for layer in layers
    }
    if structure == "full":
        norms = {WHOLE_NETWORK: sum(norms.values())}
    weights = TrainableLayers(outputs, layers)
    return _fitted(weights, likelihood, totals, norms, options, fingerprint(model))


def _begun(
    model: nn.Module, loader: Iterable[Any], options: Options, keeper: Keeper | None
) -> tuple[PreviewedLoader, Totals]:
    """The loader, and the sums over what was read of it before.

    Raises, before the model sees them, on inputs for which an asked residual means nothing.
    """
    device = model_device(model)
    left, totals = (loader, Totals()) if keeper is None else keeper.begin(check_loader(loader), device)
    previewed = PreviewedLoader(left, device, only_preview=totals.batches > 0)
    if options.residual_asked:
        as_rows(previewed.preview)
    return previewed, totals


def _batches(
    model: nn.Module, loader: PreviewedLoader, own: int | None, totals: Totals, progress: bool | None
) -> Iterator[Batch]:
    """The batches that are left, without the points that a sampler repeats."""
    steps = track(loader, "fitting", progress)
    batches = totals.counted(labelled_batches(steps, model_device(model), totals.batches))
    return without_repeats(batches, None if own is None else own - totals.rows)


def _fitted(
    weights: Head | TrainableLayers,
    likelihood: Likelihood,
    totals: Totals,
    squared_norms: dict[str, float],
    options: Options,
    known: Fingerprint,
) -> Fitted:
    if not totals.count:  # other processes have all the points that this one was given
        raise EmptyLoaderError("the loader has no points but those that other processes have")
    sums = totals.curvature, squared_norms, totals.count, float(totals.loss)
    moments = totals.input_moments
    if moments is not None and not moments.finite:  # a model may clip what is enormous
        if options.residual_asked:
            raise DataError("the fourth powers of the training inputs overflow float64: scale them down")
        moments = None
    return Fitted(weights, likelihood, *sums, known, moments)


def _check_overflow(curvature: dict[str, Curvature], dtype: torch.dtype) -> None:
    """Raise unless all sums are finite in the dtype of predictions, to which their decomposition comes."""
    for name, each in curvature.items():
        if not all(bool(total.to(dtype).isfinite().all()) for total in each.tensors().values()):
            where = "the network" if name == WHOLE_NETWORK else f"the layer {name!r}"
            larger = "" if dtype == torch.float64 else "fit the model in float64, or "
            raise DataError(
                f"the squares of what the training data give at {where} overflow {dtype}: {larger}scale its "
                "inputs down"
            )


def _squared_norm(tensors: list[Tensor]) -> float:
    # In parts: a head of 100,000 classes would take several gigabytes in float64.
    parts = (part for tensor in tensors for part in torch.split(tensor.flatten(), NORM_NUMBERS))
    return sum(float(part.double().square().sum()) for part in parts)


def _directions(
    likelihood: Likelihood, fisher: Fisher | None, device: torch.device, seen: int, totals: Totals
) -> Callable[[Tensor], Tensor]:
    """V (n, k, c) with V Vᵀ = Λₙ, or so on average over drawn labels."""
    if fisher is None:
        return lambda logits: likelihood.root(logits.double())
    if totals.generator is None:  # other random numbers for each process, too
        seed = fisher.seed + 1_000_003 * seen + 15_485_863 * together().rank
        totals.generator = torch.Generator(device).manual_seed(seed)
    generator = totals.generator
    return lambda logits: torch.stack(
        [likelihood.draw(logits.double(), generator) / math.sqrt(fisher.draws) for _ in range(fisher.draws)],
        dim=2,
    )


def _structure(options: Options, head: Head) -> str:
    """The name of the structure; "auto" follows from the size of the head."""
    if options.structure != "auto":
        if options.structure == "lowrank" and head.outputs == 1:
            raise ModelError("structure='lowrank' is for many classes: use structure='full' for one logit")
        return options.structure
    if head.outputs == 1:
        return "full"
    return "kron" if head.outputs <= MANY_CLASSES or options.paper else "lowrank"


def _check_memory(kind: type[Curvature], head: Head, device: torch.device, more: int) -> None:
    """Raise, before anything is allocated, if the structure and so many bytes more would not fit."""
    needed, free = kind.bytes_needed(head.outputs, head.width) + more, free_bytes(device)
    if free is not None and needed > free:
        raise NotEnoughMemoryError(
            f"structure={kind.structure!r} needs about {needed / 1e9:,.1f} GB for this last layer of "
            f"{head.outputs:,} outputs and {head.width:,} features, and {free / 1e9:,.1f} GB are free on "
            f"{device}: {_smaller(head, free - more)}"
        )


def _alternatives(head: Head) -> tuple[str, str]:
    """Structures that need less than others for this head, the better one first."""
    return "lowrank" if head.outputs > MANY_CLASSES else "kron", "diag"


def _smaller(head: Head, free: int) -> str:
    """What to do instead."""
    fitting = [
        repr(name)
        for name in _alternatives(head)
        if CURVATURES[name].bytes_needed(head.outputs, head.width) <= free
    ]
    other = f"use structure={' or '.join(fitting)}, or " if fitting else ""
    return f"{other}free some, or use another device"


def _check_size(kind: type[Curvature], head: Head) -> None:
    """Raise, before anything is allocated, if the structure needs a matrix that is too large to decompose."""
    if not _fits(kind, head):
        side = kind.largest_side(head.outputs, head.width)
        smaller = (each for each in _alternatives(head) if _fits(CURVATURES[each], head))
        raise ModelError(
            f"structure={kind.structure!r} needs a matrix of {side:,} × {side:,} for this last layer of "
            f"{head.outputs:,} outputs and {head.width:,} features, which takes {8 * side**2 / 1e9:,.1f} GB "
            f"and too long to decompose: use structure={' or '.join(map(repr, smaller))}"
        )


def _fits(kind: type[Curvature], head: Head) -> bool:
    """Whether the structure needs no matrix that is too large to decompose."""
    return kind.largest_side(head.outputs, head.width) <= LARGEST_SIDE


def _checked_layers(
    model: nn.Module, layers: tuple[Layer, ...], preview: Inputs, structure: str
) -> tuple[int, tuple[Layer, ...]]:
    """The number of outputs and the layers; raises, before any pass, on what the structure cannot have."""
    if structure == "full":
        check_affordable(layers)
    if structure == "kron":
        _refuse_other_layers(model, layers)
    outputs, layers = verify_layers(model, layers, preview)
    if structure == "kron":
        _refuse_other_layers(model, layers)
    return outputs, layers


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
