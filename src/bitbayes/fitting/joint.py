"""One fit by several processes: each sums up its own share of the data, and the sums are added at the end.

Sums that add number by number are added by one `all_reduce` each. Others (`LevelSums`, "lowrank") are
broadcast by each process in turn, and added in that order. All processes end with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

import torch

from bitbayes.errors import DataError, EmptyLoaderError, ProcessError
from bitbayes.fitted import DataEntry, Fitted
from bitbayes.fitting.all_layers import fit_all_layers
from bitbayes.fitting.data import FitRequest
from bitbayes.fitting.last_layer import fit_last_layer
from bitbayes.fitting.subnetwork import choosing_request, smallest_curvature
from bitbayes.model import model_device
from bitbayes.processes import Processes, current_processes
from bitbayes.structures import Curvature
from bitbayes.tensors import TensorBundle

B = TypeVar("B", bound=TensorBundle)
META = torch.device("meta")
# Relative tolerance for "same points": sums over them in another order differ by less.
SAME_POINTS = 1e-8


def fit_jointly(task: str, request: FitRequest) -> Fitted:
    """The sums over the data of all processes.

    A subnetwork takes two passes: the first chooses its weights.

    Args:
        task: "fit", or "update" and the fit to be updated.
        request: this process's share of the data; model and options are the same in all processes.
    """
    processes, options = current_processes(), request.options
    if options.subnetwork is not None and request.chosen is None:
        with processes.propagate_errors():
            choosing = choosing_request(request)
        diagonal = fit_jointly(f"the choice of weights of {task}", choosing)
        chosen = smallest_curvature(diagonal, options.subnetwork)
        return fit_jointly(task, replace(request, chosen=chosen))
    fit: Callable[[FitRequest], Fitted] = fit_all_layers if options.over_all_layers else fit_last_layer
    if processes.size == 1:
        return fit(request)

    def share() -> Fitted | None:
        try:
            return fit(request)
        except EmptyLoaderError:
            return None

    # The text of a function contains its address, which differs between processes.
    asked = replace(options, output="a function") if callable(options.output) else options
    asked = replace(asked, adapt=None)
    weighted = " and weights" if request.weighted else ""
    mine, outlines = processes.agree(f"{task} with {asked}{weighted}", share, _outline)
    known = [each for each in outlines if each is not None]
    if not known:
        raise EmptyLoaderError("the loaders of all processes are empty: they yielded no batch")
    _check_same_model(outlines)
    _refuse_same_points(processes, mine, outlines)
    return _summed(processes, mine, outlines, request)


def _outline(fitted: Fitted | None) -> Fitted | None:
    """What was fitted, with tensors that have shapes and no entries."""
    if fitted is None:
        return None
    curvature = {name: each.to(META) for name, each in fitted.curvature.items()}
    sums = {name: each.to(META) for name, each in fitted.level_sums.items()}
    return replace(fitted, curvature=curvature, level_sums=sums)


def _check_same_model(outlines: list[Fitted | None]) -> None:
    known = {rank: each for rank, each in enumerate(outlines) if each is not None}
    (first, mine), *others = known.items()
    for rank, theirs in others:
        if theirs.fingerprint != mine.fingerprint or theirs.weights != mine.weights:
            raise ProcessError(
                f"process {first} and process {rank} hold different models, or freeze different parts: load "
                "the same weights in all processes first"
            )


def _refuse_same_points(processes: Processes, mine: Fitted | None, outlines: list[Fitted | None]) -> None:
    """Raise if two processes have read the same points, in whatever order: each would count twice."""
    sums = torch.zeros(processes.size, len(_summary(next(filter(None, outlines)))), dtype=torch.float64)
    if mine is not None:
        sums[processes.rank] = torch.tensor(_summary(mine), dtype=torch.float64)
    processes.add_(sums)
    for (a, ours), (b, theirs) in combinations(enumerate(sums), 2):
        # Without a loss (the second entry), two sets of points cannot be distinguished.
        if ours[:2].all() and bool(((ours - theirs).abs() <= SAME_POINTS * theirs.abs()).all()):
            raise DataError(
                f"process {a} and process {b} have read the same {int(ours[0]):,} points, which would count "
                "twice: give each process's loader its own share (a DistributedSampler), or let each fit by "
                "itself (bitbayes.process_group(None))"
            )


def _summary(fitted: Fitted) -> list[float]:
    """Sums that distinguish two sets of points: count, loss, and the size of each tensor.

    They do not depend on the order of the points. For an outline the list has the same length.
    """
    tensors = [each for curvature in fitted.curvature.values() for each in curvature.in_any_order().values()]
    sizes = [0.0 if each.is_meta else float(each.abs().sum()) for each in tensors]
    return [fitted.count, fitted.loss, *sizes]


def _summed(
    processes: Processes, mine: Fitted | None, outlines: list[Fitted | None], request: FitRequest
) -> Fitted:
    known = [each for each in outlines if each is not None]
    first, device, options = known[0], model_device(request.model), request.options
    sum_device = torch.device("cpu") if device.type == "mps" else device  # MPS has no float64
    curvature = {}
    for name in first.curvature:
        own = None if mine is None else mine.curvature[name]
        theirs = [None if each is None else each.curvature[name] for each in outlines]
        curvature[name] = _total(processes, own, theirs, sum_device)
    sums = {}
    for name in first.level_sums:
        every = [None if each is None else each.level_sums.get(name) for each in outlines]
        shapes = {each.level_sums[name].mean.shape if name in each.level_sums else None for each in known}
        # As within one process: inputs of several sizes have no level, unless the residual was asked for.
        if None not in shapes and (len(shapes) == 1 or options.residual_asked):
            sums[name] = _total(processes, None if mine is None else mine.level_sums[name], every, sum_device)
    return replace(
        first,
        curvature=curvature,
        loss=sum(each.loss for each in known),
        entries=(DataEntry.joined(entry for each in known for entry in each.entries),),
        levels=tuple(each for each in first.levels if each.name in sums),
        level_sums=sums,
        mutable_buffers=tuple(sorted({name for each in known for name in each.mutable_buffers})),
        random=any(each.random for each in known),
        squared_errors=tuple(map(sum, zip(*(each.squared_errors for each in known), strict=True))),
    )


def _total(processes: Processes, mine: B | None, outlines: list[B | None], device: torch.device) -> B:
    """The sum of what all processes have."""
    first = next(each for each in outlines if each is not None)
    if isinstance(first, Curvature) and type(first).__add__ is Curvature.__add__:
        total = _filled(first, device) if mine is None else mine
        processes.add_(*total.tensors().values())
        return total
    parts = []
    for rank, outline in enumerate(outlines):
        if outline is not None:
            theirs = mine if rank == processes.rank and mine is not None else _filled(outline, device)
            processes.broadcast_(list(theirs.tensors().values()), rank)
            parts.append(theirs)
    return sum(parts[1:], parts[0])  # type: ignore[call-overload, no-any-return]


def _filled(outline: B, device: torch.device) -> B:
    """The outline with zeros as its tensors."""
    zeros = {name: torch.zeros_like(each, device=device) for name, each in outline.tensors().items()}
    return replace(outline, **zeros)
