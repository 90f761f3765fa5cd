"""Prediction sets: all classes that an input may have, so that the true one is among them often enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from bitbayes import metrics
from bitbayes.decisions.calibration_data import calibration_batches
from bitbayes.decisions.conformal import check_coverage, check_points, conformal_quantile, least_points
from bitbayes.errors import ArgumentError, DataError, one_of
from bitbayes.model import Batch, Data, DeferredChecks, Loader
from bitbayes.model.loaders.ordered import RANDOM
from bitbayes.precision import float64_or
from bitbayes.predicting import Predictive, Predictor

SetMethod = Literal["lac", "aps", "raps"]
# The labels of groups, one for each point: texts or whole numbers.
Groups = Sequence[Hashable] | Tensor
CLASS = "class"
# The share of the calibration data whose score is at least the threshold below which a set is full.
ACCEPTED_SHARE = 0.99
# "raps": each class behind the first PLAIN_RANKS in the order of the probabilities costs PENALTY.
PLAIN_RANKS, PENALTY = 2, 0.1
# How many groups without enough points an error shows.
SHOWN_GROUPS = 10


def least_ambiguous(probabilities: Tensor) -> Tensor:
    """The probabilities themselves, (n, k): Sadinle, Lei and Wasserman 2019."""
    return probabilities


def adaptive(probabilities: Tensor) -> Tensor:
    """The mass of a class and all less probable ones; 1 + p for the most probable class, (n, k).

    The classes with a mass of at least t are the fewest whose probabilities sum to more than 1 − t (Romano,
    Sesia and Candès 2020). The most probable class is always among them; so that not all inputs share its
    mass of 1, they are ordered by its probability. Sums begin with the smallest, and keep their digits.
    """
    return _by_rank(probabilities, 0.0)


def regularised_adaptive(probabilities: Tensor) -> Tensor:
    """`adaptive` − 0.1·max(0, rank − 2), (n, k): Angelopoulos, Bates, Malik and Jordan 2021."""
    return _by_rank(probabilities, PENALTY)


def _by_rank(probabilities: Tensor, penalty: float) -> Tensor:
    # A stable order, and sums in float64 that are rounded once: the same for equal probabilities and in every
    # runtime.
    ordered, order = probabilities.sort(dim=1, stable=True)
    sums = ordered.to(float64_or(ordered.device, ordered.dtype)).cumsum(1).to(ordered)
    mass = torch.cat([sums[:, :-1], 1 + ordered[:, -1:]], 1)
    ranks = torch.arange(probabilities.shape[1], 0, -1, device=probabilities.device)
    mass = mass - penalty * (ranks - PLAIN_RANKS).clamp_min(0)
    return torch.zeros_like(mass).scatter(1, order, mass)


# Probabilities (n, k) → conformities (n, k): how well each class would agree with the prediction.
METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "lac": least_ambiguous,
    "aps": adaptive,
    "raps": regularised_adaptive,
}


@dataclass(frozen=True)
class PredictionSets:
    """Sets of classes that hold the true one with a probability of at least `coverage`.

    A class is in the set of x if its conformity is at least the quantile, which `Laplace.sets` has found on
    calibration data: {y : c(x, y) ≥ quantile}. The sets keep the settings that the `Laplace` had then.

    method: "lac", "aps" or "raps".
    coverage: that was asked for.
    quantile: one number, or one for each class, (k,), or for each group, in the order of `groups`.
    threshold: the score below which an input gets the full set; None if no input is refused.
    groups: the labels of the groups that each have a quantile; None if there are none.

    >>> import bitbayes as bb
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> bayes = bb.Laplace(torch.nn.Linear(4, 3), prior_variance=1.0).fit([(x, y)])
    >>> sets = bayes.sets([(torch.randn(60, 4), y)], coverage=0.9)
    >>> found = sets(x)
    >>> found.shape, found.dtype, sets.method
    (torch.Size([60, 3]), torch.bool, 'lac')
    """

    method: str
    coverage: float
    quantile: float | Tensor
    threshold: float | None
    groups: tuple[Hashable, ...] | None
    predictor: Predictor = field(repr=False)
    predictive: Predictive = field(repr=False)

    @torch.no_grad()
    def __call__(self, x: Data, *, groups: Groups | None = None) -> Tensor:
        """Return for each input and each class whether the class is in the input's set, (n, k).

        Args:
            x: inputs, or a loader of them.
            groups: the group of each input, if the sets were calibrated within groups.
        """
        posterior = self.predictor.posterior
        posterior.check_unchanged(posterior.model)
        numbers = None if groups is None else _listed(groups)
        found: list[Tensor] = []
        count = 0
        for batch, gaussian in self.predictor.gaussians(self.predictor.batches(x)):
            probabilities = self.predictive.probabilities(batch, gaussian)
            accepted = None
            if self.threshold is not None:
                accepted = self.predictor.score(batch, gaussian) >= self.threshold
            own = None if numbers is None else numbers[count : count + len(probabilities)]
            count += len(probabilities)
            found.append(self.of(probabilities, accepted, own))
        if numbers is not None and len(numbers) != count:
            raise ArgumentError(f"groups has {len(numbers):,} labels for {count:,} inputs: give one for each")
        return torch.cat(found)

    def of(
        self, probabilities: Tensor, accepted: Tensor | None = None, groups: Groups | None = None
    ) -> Tensor:
        """Return the sets of inputs with these probabilities, (n, k).

        Args:
            probabilities: (n, k), as `predict_proba` returns them.
            accepted: (n,), whether the score of an input is at least `threshold`; None is all of them.
            groups: the group of each input, if the sets were calibrated within groups.
        """
        if probabilities.dim() != 2:
            raise ArgumentError(
                f"the probabilities have shape {tuple(probabilities.shape)}: expected (n, classes)"
            )
        if accepted is not None and (accepted.dim() != 1 or accepted.dtype != torch.bool):
            raise ArgumentError(
                f"accepted is {accepted.dtype} of shape {tuple(accepted.shape)}: expected one boolean for "
                "each input, (n,)"
            )
        kept = METHODS[self.method](probabilities) >= self._quantiles(probabilities, groups)
        return kept if accepted is None else kept | ~accepted[:, None]

    def _quantiles(self, like: Tensor, groups: Groups | None) -> Tensor:
        """One quantile for all, (), or (k,), or (n, 1)."""
        if self.groups is None:
            if groups is not None:
                raise ArgumentError(
                    "groups= is for sets that were calibrated within groups: sets(loader, within=labels)"
                )
            # A tensor also if it is one number: ONNX would round a number to float32.
            return torch.as_tensor(self.quantile, dtype=like.dtype, device=like.device)
        if groups is None:
            raise ArgumentError("these sets were calibrated within groups: give groups=, one for each input")
        places = {name: place for place, name in enumerate(self.groups)}
        wanted = _listed(groups)
        if unknown := [name for name in dict.fromkeys(wanted) if name not in places]:
            raise ArgumentError(
                f"the group {unknown[0]!r} was not among the calibration data: there are "
                f"{_shown(self.groups)}"
            )
        if len(wanted) != len(like):
            raise ArgumentError(
                f"groups has {len(wanted):,} labels for {len(like):,} inputs: give one for each"
            )
        assert isinstance(self.quantile, Tensor)
        rows = torch.tensor([places[name] for name in wanted], dtype=torch.long)
        return self.quantile.cpu()[rows].to(like)[:, None]

    def as_json(self) -> dict[str, Any]:
        """What an exported file says about the sets."""
        quantile = self.quantile.tolist() if isinstance(self.quantile, Tensor) else self.quantile
        return {
            "method": self.method,
            "coverage": self.coverage,
            "quantile": quantile,
            "threshold": self.threshold,
        }

    @classmethod
    def calibrated(
        cls,
        predictor: Predictor,
        predictive: Predictive,
        loader: Loader,
        *,
        coverage: float,
        method: SetMethod,
        within: Literal["class"] | Groups | None,
        threshold: float | None,
        seen: Mapping[int, str],
        progress: bool | None,
    ) -> Self:
        """What `Laplace.sets` returns."""
        share, groups = check_coverage(coverage), None
        _check(predictor, method, threshold)
        if isinstance(within, str):
            one_of("within", within, (CLASS,))
        elif within is not None:
            groups = _listed(within)
            _check_order(loader)
        batches = calibration_batches(predictor, loader, seen, "prediction sets", progress)
        points = _calibration_points(predictor, predictive, batches, METHODS[method])
        classes = predictor.posterior.likelihood.classes(predictor.posterior.outputs)
        if groups is not None and len(groups) != len(points.labels):
            raise ArgumentError(
                f"within has {len(groups):,} labels for {len(points.labels):,} calibration points: give one "
                "for each, in the order of the loader, or within='class'"
            )
        by_class = within is not None and groups is None
        parts = _parts(points, groups, classes if by_class else 0)
        _check_parts(parts, share, None if within is None else "class" if by_class else "group")
        found = torch.stack(
            [
                conformal_quantile(part.conformities, share, weights=part.weights, points=part.points)
                for part in parts.values()
            ]
        )
        if threshold is None:
            threshold = metrics.threshold(points.scores, accept=ACCEPTED_SHARE)
        return cls(
            method,
            float(coverage),
            found.item() if within is None else found,
            None if threshold == -math.inf else float(threshold),
            None if groups is None else tuple(parts),
            predictor,
            predictive,
        )


class _Points(NamedTuple):
    """Calibration points on the CPU: labels (n,) or (n, k), scores (n,), and conformities.

    `conformities`: of the true class, (n,), or with several labels of each, (n, k).
    """

    labels: Tensor
    conformities: Tensor
    scores: Tensor


class _Part(NamedTuple):
    """What shares a quantile: conformities (m,) of so many points, and their weights unless all are 1."""

    conformities: Tensor
    weights: Tensor | None
    points: int


def _calibration_points(
    predictor: Predictor,
    predictive: Predictive,
    batches: Iterator[Batch],
    conformity: Callable[[Tensor], Tensor],
) -> _Points:
    posterior, parts = predictor.posterior, []
    with DeferredChecks() as checks:
        for batch, gaussian in predictor.gaussians(batches):
            probabilities = predictive.probabilities(batch, gaussian)
            assert batch.labels is not None
            shape = (len(probabilities), posterior.outputs)
            labels = posterior.likelihood.check_labels(batch.labels, shape, batch.name, checks)
            found = conformity(probabilities)
            if posterior.likelihood.one_label:
                found = found.gather(1, labels[:, None])[:, 0]
            scores = predictor.score(batch, gaussian)
            parts.append(_Points(labels.cpu(), found.cpu(), scores.cpu()))
    return _Points(*map(torch.cat, zip(*parts, strict=True)))


def _parts(points: _Points, groups: list[Hashable] | None, classes: int) -> dict[Hashable, _Part]:
    """The points of each of so many classes by its number, of each group by its name, or all of them."""
    labels, conformities, _ = points
    if classes:
        if labels.dim() == 1:
            of_class = [conformities[labels == each] for each in range(classes)]
        else:  # the points that have the label
            of_class = [own[has] for own, has in zip(conformities.T, labels.T == 1, strict=True)]
        return {number: _Part(own, None, len(own)) for number, own in enumerate(of_class)}
    names = [None] * len(labels) if groups is None else groups
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    place = torch.tensor([places[name] for name in names])
    members = {name: (place == number).nonzero()[:, 0] for name, number in places.items()}
    if labels.dim() == 1:
        return {name: _Part(conformities[rows], None, len(rows)) for name, rows in members.items()}
    return {name: _missed_labels(conformities[rows], labels[rows] == 1) for name, rows in members.items()}


def _missed_labels(conformities: Tensor, has: Tensor) -> _Part:
    """The loss of a point is the share of its labels that are missed; without any it is 0."""
    if not bool(has.any()):
        raise DataError("no calibration point has a label: there is nothing that a set could miss")
    weights = has.double() / has.sum(1, keepdim=True).clamp_min(1)
    return _Part(conformities[has], weights[has], len(has))


def _check(predictor: Predictor, method: str, threshold: float | None) -> None:
    """Raise on arguments that are wrong, or that the model does not allow."""
    likelihood = predictor.posterior.likelihood
    if not likelihood.classifies:
        raise ArgumentError(
            f"likelihood={likelihood.name!r} predicts values, which have no sets of classes: use "
            "`conformal_interval`"
        )
    if likelihood.of_pairs:
        raise ArgumentError(
            f"likelihood={likelihood.name!r}: sets are for classes, and which input comes first in a pair "
            "means nothing"
        )
    if predictor.posterior.layout.positions:
        raise ArgumentError(
            "the output has positions, and those of one input are not exchangeable with those of another: "
            "sets are for models with one prediction for each input"
        )
    one_of("method", method, tuple(METHODS))
    if method != "lac" and not likelihood.one_label:
        raise ArgumentError(
            f"method={method!r} is for classes that exclude each other: several labels need method='lac'"
        )
    is_number = isinstance(threshold, (int, float)) and not math.isnan(threshold) and threshold < math.inf
    if threshold is not None and not is_number:
        raise ArgumentError(
            f"threshold={threshold!r}: expected a score, or -math.inf, with which no input is refused"
        )


def _check_order(loader: Any) -> None:
    """Raise if the loader is known to shuffle, so that labels of groups would go to other points."""
    batches = getattr(loader, "batch_sampler", None)
    if isinstance(getattr(batches, "sampler", getattr(loader, "sampler", None)), RANDOM):
        raise ArgumentError(
            "the loader shuffles, and the labels of groups in within= are in the order of its points: use "
            "shuffle=False"
        )


def _check_parts(parts: dict[Hashable, _Part], coverage: Fraction, kind: str | None) -> None:
    """Raise if a class or a group, or all together (None), have fewer points than their quantile takes."""
    if kind is None:
        for part in parts.values():
            check_points(part.points, coverage)
        return
    least = least_points(coverage)
    short = {name: part.points for name, part in parts.items() if part.points < least}
    if short:
        rows = [f"{kind} {name!r} has {count:,}, {least - count:,} too few" for name, count in short.items()]
        others = f"; and {len(rows) - SHOWN_GROUPS:,} others" if len(rows) > SHOWN_GROUPS else ""
        raise DataError(
            f"coverage={float(coverage)} takes {least:,} calibration points of each {kind}: "
            f"{'; '.join(rows[:SHOWN_GROUPS])}{others}. Give more, or a lower coverage"
        )


def _listed(groups: Groups) -> list[Hashable]:
    """The labels of groups as a list of texts and whole numbers; raises on anything else."""
    given: Any = groups
    several = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(several, str) or not isinstance(several, Iterable):
        raise ArgumentError(f"expected the label of a group for each point, got {several!r}")
    names = list(several)
    for name in names:
        if not isinstance(name, (str, int)):
            raise ArgumentError(f"the label of a group is {name!r}: expected texts or whole numbers")
    return names


def _shown(names: Sequence[Hashable]) -> str:
    more = ", …" if len(names) > SHOWN_GROUPS else ""
    return ", ".join(map(repr, names[:SHOWN_GROUPS])) + more
