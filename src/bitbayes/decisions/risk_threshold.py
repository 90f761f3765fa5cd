"""A threshold on confidence with a guaranteed risk: exact tests in a fixed sequence.

Let R(t) be the error rate among inputs with a confidence of at least t. Of n calibration points, Nₜ have such
a confidence, and Eₜ of these are wrong. For a t that does not depend on the calibration data, these Nₜ points
are independent draws of such inputs: given Nₜ, Eₜ is Bin(Nₜ, R(t)). So P(Bin(Nₜ, risk) ≤ Eₜ) is a p-value of
"R(t) > risk". If a fixed order of thresholds is tested until one fails, at 1 − level each, then the first t
with R(t) > risk is among those that have passed with a probability of at most 1 − level, and only then can a
later one be.

The order and its beginning must be fixed, too. It may seem that it can begin at the strictest threshold that
accepts enough calibration points, because their number says nothing of their labels. But it says something of
where they are: given that few points are above one threshold, more of those above the next lie between the
two, where the error rate may be another, and Eₜ is not binomial any more. (It would do no harm if the error
rate fell with confidence everywhere, which nobody knows.) So the beginning is chosen by the data of `tune`,
whose labels may be used as well: it is where they let expect that the test passes (`beginning`).

Where these are not known, the thresholds are a fixed grid, and each of them is a beginning that has an equal
share of 1 − level. A threshold that passes hands its share on to the next one (the fallback procedure of
Wiens 2003), so that none is tested at more than 1 − level, and their sum stays 1 − level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from bitbayes.decisions.binomial import (
    PValue,
    binomial_tail,
    divergence,
    hoeffding_bentkus,
    least_points,
    upper_bound,
)
from bitbayes.decisions.calibration_data import calibration_batches
from bitbayes.errors import ArgumentError, DataError
from bitbayes.model import DeferredChecks, Loader
from bitbayes.predicting import CONFIDENCE, Predictive, Predictor
from bitbayes.tuned import TunedData

# Costs (classes, actions).
LossMatrix = Tensor | Sequence[Sequence[float]]
# The thresholds where no data tell of better ones: confidences whose log odds are 8, 7.5, …, −1.
GRID = tuple(torch.tensor([8 - i / 2 for i in range(19)]).sigmoid().tolist())

# The expected p-value at the beginning is this many times smaller than it need be, if there is such a place:
# the error rates of the data of `tune` are rough, too.
ROOM = 5.0


class Decision(NamedTuple):
    """The most probable class, or with costs the best action, (n,), and whether it is accepted, (n,)."""

    action: Tensor
    accepted: Tensor


class RiskThreshold(float):
    """A threshold t: among inputs with a confidence ≥ t the risk is at most `risk`, with probability `level`.

    It is a float, so `bayes.confidence(x) >= t` works as with any number. With costs, the confidence is minus
    the least expected cost, which `decide` computes.

    risk: the promised risk: the error rate, or a cost in the units of `loss`.
    level: the probability of the promise, over the draw of the calibration data.
    points: how many calibration points there were.
    accepted: how many of them have a confidence of at least t.
    errors: how many of these were wrong (with `loss`: the sum of their costs).
    bound: the upper bound of the risk at t, from its own test: that of Clopper and Pearson, or with `loss`
        that of Hoeffding and Bentkus. It is at most `risk`. Of the two, `risk` is the promise: t was chosen.
    loss: the costs, one row for each class; None if the risk is the error rate.
    score_threshold: the score that inputs must reach, too; None if there is none. The promise is then about
        inputs with a confidence ≥ t and a score ≥ `score_threshold`, and so are `accepted` and `errors`. A
        promise about all inputs says nothing of a part of them that a score chooses.

    >>> t = RiskThreshold(0.8, risk=0.05, level=0.95, points=100, accepted=75, errors=0, bound=0.04)
    >>> t.accepted_share, t == 0.8
    (0.75, True)
    >>> t.decide(torch.tensor([[0.1, 0.9], [0.6, 0.4]]))
    Decision(action=tensor([1, 0]), accepted=tensor([ True, False]))
    """

    risk: float
    level: float
    points: int
    accepted: int
    errors: float
    bound: float
    loss: tuple[tuple[float, ...], ...] | None
    score_threshold: float | None

    def __new__(
        cls,
        value: float,
        *,
        risk: float,
        level: float,
        points: int,
        accepted: int,
        errors: float,
        bound: float,
        loss: tuple[tuple[float, ...], ...] | None = None,
        score_threshold: float | None = None,
    ) -> Self:
        made = super().__new__(cls, value)
        made.risk, made.level, made.points = risk, level, points
        made.accepted, made.errors, made.bound = accepted, errors, bound
        made.loss = loss
        made.score_threshold = score_threshold
        return made

    @property
    def accepted_share(self) -> float:
        """The share of the calibration points that are accepted."""
        return self.accepted / self.points

    def decide(self, probabilities: Tensor, scores: Tensor | None = None) -> Decision:
        """Return what to answer to inputs with these probabilities, and whether to answer.

        Args:
            probabilities: (n, classes), as `predict_proba` returns them.
            scores: (n,), as `score` returns them, if there is a `score_threshold`.
        """
        action, confidence = decisions(probabilities, self.loss)
        accepted = confidence >= float(self)
        if self.score_threshold is None:
            return Decision(action, accepted)
        if scores is None:
            raise ArgumentError(
                f"this threshold is for inputs with a score of at least {self.score_threshold:.4g}: give "
                "their scores, too. `predict_and_score` returns both"
            )
        if scores.shape != action.shape:
            raise ArgumentError(
                f"the scores have shape {tuple(scores.shape)}: expected {tuple(action.shape)}, one for each "
                "row of the probabilities"
            )
        return Decision(action, accepted & (scores >= self.score_threshold))

    def __getnewargs_ex__(self) -> tuple[tuple[float], dict[str, Any]]:
        """Return what makes the same threshold again, for pickle and copy."""
        return (float(self),), dict(vars(self))

    @classmethod
    def calibrated(
        cls,
        predictor: Predictor,
        predictive: Predictive,
        loader: Loader,
        *,
        risk: float,
        level: float,
        by: str | None,
        loss: LossMatrix | None,
        score_threshold: float | None,
        tuned: TunedData | None,
        seen: Mapping[int, str],
        progress: bool | None,
    ) -> Self:
        """What `Laplace.threshold` returns for a risk."""
        _check(predictor, by)
        posterior = predictor.posterior
        costs = None if loss is None else checked_loss(loss, posterior.likelihood.classes(posterior.outputs))
        _check_numbers(risk, level, costs)
        _check_score(score_threshold)
        parts, count = [], 0
        batches = calibration_batches(predictor, loader, seen, "risk threshold", progress)
        with DeferredChecks() as checks:
            for batch, gaussian in predictor.gaussians(batches):
                assert batch.labels is not None
                probabilities = predictive.probabilities(batch, gaussian)
                shape = (len(probabilities), posterior.outputs)
                labels = posterior.likelihood.check_labels(batch.labels, shape, batch.name, checks)
                count += len(labels)
                if score_threshold is not None:
                    kept = predictor.score(batch, gaussian) >= score_threshold
                    probabilities, labels = probabilities[kept], labels[kept.to(labels.device)]
                parts.append((probabilities.cpu(), labels.cpu()))
        found, labels = map(torch.cat, zip(*parts, strict=True))
        if not len(labels):
            raise DataError(
                f"score_threshold={score_threshold!r}: none of {count:,} calibration points has such a score"
            )
        made = cls.of(found, labels, risk=risk, level=level, loss=costs, tuned=tuned)
        # Given how many points have the score, these are independent draws of inputs that have it.
        made.points, made.score_threshold = count, score_threshold
        return made

    @classmethod
    def of(
        cls,
        probabilities: Tensor,
        labels: Tensor,
        *,
        risk: float,
        level: float,
        loss: tuple[tuple[float, ...], ...] | None = None,
        tuned: TunedData | None = None,
    ) -> Self:
        """The lowest threshold that the probabilities (n, classes) of points with these labels (n,) allow."""
        action, confidence = decisions(probabilities, loss)
        n, unit = len(labels), 1.0
        p_value: PValue = binomial_tail
        losses = (action != labels).double()
        if loss is not None:
            matrix = torch.tensor(loss, dtype=torch.float64)
            losses, unit, p_value = matrix[labels.long(), action], float(matrix.max()), hoeffding_bentkus
        # A test for each threshold, at its share of 1 − level.
        sequence = _sequence(tuned, n, risk, 1 - level) if loss is None else _grid(1 - level, unit)
        tests: list[_Test] = []
        passed, alpha = None, 0.0
        for threshold, share in sequence:
            alpha += share
            if not alpha:  # after a failure, until the next beginning
                continue
            test = _Test.of(threshold, share, confidence, losses / unit)
            tests.append(test)
            if test.accepted and p_value(test.total, test.accepted, risk / unit) <= alpha:
                passed = test, alpha
            else:
                alpha = 0.0
        if passed is None:
            raise DataError(_refusal(tests, n, risk, level, unit, costs=loss is not None))
        test, alpha = passed
        return cls(
            test.threshold,
            risk=float(risk),
            level=float(level),
            points=n,
            accepted=test.accepted,
            errors=test.total if loss is None else test.total * unit,
            bound=unit * upper_bound(p_value, test.total, test.accepted, alpha),
            loss=loss,
        )


class _Test(NamedTuple):
    """A threshold, its share of 1 − level, how many points it accepts, and the sum of their losses."""

    threshold: float
    alpha: float
    accepted: int
    total: float

    @classmethod
    def of(cls, threshold: float, alpha: float, confidence: Tensor, losses: Tensor) -> Self:
        kept = confidence >= threshold  # as a user compares them, in their own dtype
        return cls(threshold, alpha, int(kept.sum()), float(losses[kept].sum()))


def decisions(probabilities: Tensor, loss: Sequence[Sequence[float]] | None) -> tuple[Tensor, Tensor]:
    """The best action (n,) and the confidence in it (n,), from probabilities (n, classes).

    They are the most probable class and its probability. With costs the action is that of the least expected
    cost, and the confidence minus this cost.
    """
    if loss is None:
        if probabilities.dim() != 2:
            raise ArgumentError(
                f"the probabilities have shape {tuple(probabilities.shape)}: expected (n, classes)"
            )
        confidence, action = probabilities.max(1)
        return action, confidence
    matrix = torch.tensor(loss, dtype=torch.float64)
    if probabilities.dim() != 2 or probabilities.shape[1] != len(matrix):
        raise ArgumentError(
            f"the probabilities have shape {tuple(probabilities.shape)}, and loss has a row for each of "
            f"{len(matrix)} classes: expected (n, {len(matrix)})"
        )
    # One row after the other, on the CPU: the same number whatever else is in the batch.
    expected = (probabilities.cpu().double()[:, :, None] * matrix).sum(1)  # (n, actions)
    cost, action = expected.min(1)
    return action.to(probabilities.device), (-cost).to(probabilities.device)


def beginning(tuned: TunedData, n: int, risk: float, alpha: float) -> int:
    """The place of the strictest quantile whose test of n calibration points is likely to pass.

    It is that with an expected p-value of at most alpha/5 or, if there is none, the smallest. The error rate
    at a quantile is taken to be (E + ½)/(N + 1), with N points of the data of `tune` accepted, and E of them
    wrong.
    """

    def expected(accepted: int, errors: int) -> float:
        ours = n * accepted // tuned.points
        return binomial_tail(math.ceil(ours * (errors + 0.5) / (accepted + 1)), ours, risk)

    p_values = list(map(expected, tuned.accepted, tuned.errors))
    enough = max(min(p_values), alpha / ROOM)
    return next(place for place, p_value in enumerate(p_values) if p_value <= enough)


def _sequence(tuned: TunedData | None, n: int, risk: float, alpha: float) -> Iterator[tuple[float, float]]:
    """The thresholds to test for an error rate, from strict to loose, and the share of alpha of each."""
    if tuned is None or not tuned.confidences:
        yield from _grid(alpha)
        return
    first, *others = tuned.confidences[beginning(tuned, n, risk, alpha) :]
    yield first, alpha
    yield from ((each, 0.0) for each in others)


def _grid(alpha: float, unit: float | None = None) -> Iterator[tuple[float, float]]:
    """The same without data. With costs of at most `unit`, a confidence c is the cost unit·(1 − c)."""
    for confidence in GRID:
        yield (confidence if unit is None else -unit * (1 - confidence)), alpha / len(GRID)


def checked_loss(loss: LossMatrix, classes: int) -> tuple[tuple[float, ...], ...]:
    """The costs as rows of numbers; raises if they are none."""
    try:
        matrix = torch.as_tensor(loss, dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"loss={loss!r}: expected a matrix of costs, (classes, actions)") from error
    if matrix.dim() != 2 or len(matrix) != classes or not matrix.shape[1]:
        raise ArgumentError(
            f"loss has shape {tuple(matrix.shape)}: expected ({classes}, actions), a row for each class with "
            "what each action costs in it"
        )
    if not bool((matrix.isfinite() & (matrix >= 0)).all()) or not bool(matrix.any()):
        raise ArgumentError(f"loss={matrix.tolist()}: expected finite costs ≥ 0, of which some are above 0")
    return tuple(map(tuple, matrix.tolist()))


def _check(predictor: Predictor, by: str | None) -> None:
    """Raise on what has no risk of one answer for each input."""
    likelihood = predictor.posterior.likelihood
    name = f"likelihood={likelihood.name!r}"
    if not likelihood.classifies:
        raise ArgumentError(
            f"{name} predicts values, which have no error rate: use accept=, or `conformal_interval`"
        )
    if likelihood.of_pairs:
        raise ArgumentError(
            f"{name}: a risk is that of classes, and which input comes first in a pair means nothing"
        )
    if not likelihood.one_label:
        raise ArgumentError(
            f"{name} gives several answers to each input: use `sets`, which controls the share of missed "
            "labels, or `label_thresholds`"
        )
    if predictor.posterior.layout.positions:
        raise ArgumentError(
            "the output has positions, and those of one input are not independent: a risk is for models with "
            "one prediction for each input"
        )
    if by not in (None, CONFIDENCE):
        raise ArgumentError(
            f"by={by!r}: a risk needs by='confidence', because mistakes are ranked by the confidence. The "
            "score ranks strangers: give accept= for it"
        )


def _check_score(threshold: float | None) -> None:
    is_number = isinstance(threshold, (int, float)) and math.isfinite(threshold)
    if threshold is not None and not is_number:
        raise ArgumentError(
            f"score_threshold={threshold!r}: expected a score, as `threshold(loader, accept=0.95)` returns it"
        )


def _check_numbers(risk: float, level: float, loss: Sequence[Sequence[float]] | None) -> None:
    largest = 1.0 if loss is None else max(map(max, loss))
    if not isinstance(risk, (int, float)) or not 0 < risk < largest:
        of = "" if loss is None else ", the largest cost of loss"
        raise ArgumentError(f"risk={risk!r}: expected a number between 0 and {largest:g}{of}")
    if not isinstance(level, (int, float)) or not 0 < level < 1:
        raise ArgumentError(f"level={level!r}: expected a number between 0 and 1")


def _refusal(tests: list[_Test], n: int, risk: float, level: float, unit: float, *, costs: bool) -> str:
    """What came out, and how many points it would take, where nothing can be promised."""
    alpha = max(test.alpha for test in tests)
    asked, least = f"risk={risk!r}, level={level!r}", least_points(risk / unit, alpha)
    if n < least:
        return (
            f"{asked} takes at least {least:,} calibration points that are accepted, and all of them right; "
            f"there are {n:,}. Give more, or allow a larger risk"
        )
    begun = [test for test in tests if test.alpha and test.accepted]
    if not begun:
        return f"{asked}: no calibration point is accepted by a threshold that is tested"
    # Rates of few points are mostly chance: of at least as many as it takes, if there are.
    enough = min(least, max(test.accepted for test in begun))
    needed = partial(_points_needed, n=n, risk=risk / unit, alpha=alpha)
    best = min((test for test in begun if test.accepted >= enough), key=needed)
    found, cost = best.total * unit, best.total * unit / best.accepted
    seen = (
        f"no threshold can promise {asked}. Of {n:,} calibration points {best.accepted:,} have a confidence "
        f"of at least {best.threshold:.4g}, with {'costs' if costs else 'errors'} of {found:.4g} in all"
    )
    points = needed(best)
    if math.isinf(points):
        return (
            f"{seen}, which is {cost:.3g} for each: more points alone would not help. Allow a larger risk, "
            "or improve the model"
        )
    return (
        f"{seen}, which is {cost:.3g} for each. At this rate it takes about {math.ceil(points):,} points: "
        "give more, or allow a larger risk"
    )


def _points_needed(test: _Test, *, n: int, risk: float, alpha: float) -> float:
    """Roughly how many calibration points would do at the rates that were seen: log(1/α)/divergence each.

    Without errors it is exact, with some it is a few too many (Chernoff's bound).
    """
    rate = test.total / test.accepted
    if rate >= risk:
        return math.inf
    return -math.log(alpha) / divergence(rate, risk) * n / test.accepted
