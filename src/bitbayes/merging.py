"""Add or subtract posteriors fitted on separate data."""

import copy
from collections.abc import Sequence
from os import PathLike

import torch
from torch import nn

from bitbayes.errors import ArgumentError, DataError
from bitbayes.fitted import DataEntry, remaining
from bitbayes.laplace import Laplace
from bitbayes.model import unselected, working_dtype

Part = Laplace | str | PathLike[str]
# Relative error that a difference of sums may have: for a model in float64, and for any other.
AGREEMENT, COARSE_AGREEMENT = 1e-9, 1e-3
# How many rounding errors a sum over many batches may collect.
ROUNDINGS = 100


def merge(
    parts: Part | Sequence[Part], *, without: Part | Sequence[Part] = (), model: nn.Module | None = None
) -> Laplace:
    """Combine posteriors that were fitted on different data, and take data out again.

    The result is that of one `fit` on all data of `parts`, without those of `without`. Curvature is a sum
    over data, so the sums of the parts are added, and those of `without` are subtracted. The options, the
    prior variance, the temperature and the residual are those of the first part. Tune again if these matter.
    The parts do not change.

    Each `fit` and `update` leaves an entry, also in files: the number of points, and a digest of inputs and
    labels in any order. A `DataError` is raised, before anything is added, if an entry is in twice, or is to
    be taken out and is not in. Data that two entries share only in part are not noticed.

    Args:
        parts: fitted `Laplace`s of one model, or files that they were saved to.
        without: the same, for data to take out. They must be in `parts` as they were added, by one `fit` or
            `update` each. The result agrees with a fit without them to 1e-9 for a model in float64, and to
            1e-3 otherwise. If too few digits are left for that, a `DataError` is raised. Where labels are
            drawn (`curvature="fisher"`), give the very fits that were merged: another fit of the same data
            draws other labels.
        model: the network that was fitted. It is needed if all parts are files.

    Returns:
        A new `Laplace`.

    >>> import bitbayes as bb
    >>> _ = torch.manual_seed(0)
    >>> model, x, y = nn.Linear(4, 3).double(), torch.randn(60, 4).double(), torch.arange(60) % 3
    >>> first, second = (bb.Laplace(model).fit([(x[rows], y[rows])]) for rows in (slice(40), slice(40, 60)))
    >>> both = bb.merge([first, second])
    >>> torch.allclose(both.predict_proba(x), bb.Laplace(model).fit([(x, y)]).predict_proba(x))
    True
    >>> again = bb.merge(both, without=second)
    >>> torch.allclose(again.predict_proba(x), first.predict_proba(x), atol=1e-9)
    True
    """
    included, excluded = _listed(parts), _listed(without)
    if not included:
        raise ArgumentError("there is nothing to merge: give at least one fitted Laplace, or its file")
    known = next((each for each in included + excluded if isinstance(each, Laplace)), None)
    if model is None and known is not None:
        model = unselected(known.model)
    first, *others = (_loaded(each, model, known) for each in included)
    removed = [_loaded(each, model, known) for each in excluded]
    for other in others + removed:
        _check_mergeable(first, other)
    _check_data([first, *others], removed)
    total = first.posterior.fitted
    for other in others:
        total = total + other.posterior.fitted
    for other in removed:
        total = total.without(other.posterior.fitted, _max_ratio(first.model))
    merged = copy.copy(first)
    merged.set_fitted(total)
    return merged


def _listed(parts: Part | Sequence[Part]) -> list[Part]:
    return [parts] if isinstance(parts, (Laplace, str, PathLike)) else list(parts)


def _loaded(part: Part, model: nn.Module | None, known: Laplace | None) -> Laplace:
    """The part itself, or what its file holds, with the functions of a `known` one, which no file has."""
    if isinstance(part, Laplace):
        return part
    if not isinstance(part, (str, PathLike)):
        raise ArgumentError(f"{type(part).__name__} in the place of a fitted Laplace or the path of its file")
    if model is None:
        raise ArgumentError(
            "all parts are files: give the network that they belong to, merge(…, model=model)"
        )
    if known is None:
        return Laplace.load(part, model)
    return Laplace.load(
        part, model, output=known.output if callable(known.output) else None, adapt=known.adapt
    )


def _check_mergeable(first: Laplace, other: Laplace) -> None:
    """Raise if the sums of the two cannot be added."""
    if (outputs := first.posterior.fitted.known_outputs) is not None:
        outputs.check(other.posterior.network())
    mine, theirs = (each.posterior.fitted.curvature for each in (first, other))
    if first.layers == other.layers and mine.keys() != theirs.keys():
        raise ArgumentError(
            f"these cannot be merged: they are about other layers, {', '.join(mine)} and "
            f"{', '.join(theirs)}. Freeze the same layers, and fit again"
        )
    if _kind(first) != _kind(other):
        raise ArgumentError(
            f"these cannot be merged, because their options differ: {first.options} and {other.options}"
        )


def _kind(bayes: Laplace) -> tuple[object, ...]:
    """What two of them must have in common, so that their sums can be added. Seeds of draws may differ."""
    options, fitted = bayes.options, bayes.posterior.fitted
    structures = [type(each) for each in fitted.curvature.values()]
    fisher = options.fisher(fitted.weights.outputs)
    draws = None if fisher is None else fisher.draws
    residual = bool(options.residual), options.residual_layers
    return options.layers, options.subnetwork, structures, fitted.likelihood.name, draws, *residual


def _check_data(parts: list[Laplace], removed: list[Laplace]) -> None:
    """Raise if data would count twice, or if data are to be taken out that are not in."""
    places: dict[DataEntry, int] = {}
    for place, each in enumerate(parts, 1):
        for entry in each.posterior.fitted.entries:
            if places.setdefault(entry, place) != place:
                raise DataError(
                    f"the same {entry.count:,} points are in part {places[entry]} and again in part {place}: "
                    "they would count twice. Give all data once"
                )
    left = tuple(entry for each in parts for entry in each.posterior.fitted.entries)
    for each in removed:
        left = remaining(left, each.posterior.fitted.entries)


def _max_ratio(model: nn.Module) -> float:
    """Largest total/remainder ratio before cancellation."""
    dtype = working_dtype(model)
    agreement = AGREEMENT if dtype == torch.float64 else COARSE_AGREEMENT
    return agreement / (ROUNDINGS * torch.finfo(dtype).eps)
