"""A threshold on confidence with a guaranteed risk."""

from __future__ import annotations

from typing import Self


class RiskThreshold(float):
    """A threshold t: among inputs with a confidence ≥ t the risk is at most `risk`, with probability `level`.

    It is a float, so `bayes.confidence(x) >= t` works as with any number.

    risk: the promised risk: the error rate, or a cost in the units of `loss`.
    level: the probability of the promise, over the draw of the calibration data.
    points: how many calibration points there were.
    accepted: how many of them have a confidence of at least t.
    errors: how many of these were wrong (with `loss`: the sum of their costs).
    bound: the upper bound of the risk at t, at the level.
    score_threshold: the score that calibration points had to reach to count; None if all of them counted. The
        promise is then about inputs with a confidence ≥ t and a score ≥ `score_threshold`. For a part of the
        inputs that it was not made for, there is no promise.
    """

    risk: float
    level: float
    points: int
    accepted: int
    errors: float
    bound: float
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
        score_threshold: float | None = None,
    ) -> Self:
        made = super().__new__(cls, value)
        made.risk, made.level, made.points = risk, level, points
        made.accepted, made.errors, made.bound = accepted, errors, bound
        made.score_threshold = score_threshold
        return made

    @property
    def accepted_share(self) -> float:
        """The share of the calibration points that are accepted."""
        return self.accepted / self.points

    def __getnewargs_ex__(self) -> tuple[tuple[float], dict[str, float | None]]:
        """Return what makes the same threshold again, for pickle and copy."""
        return (float(self),), dict(vars(self))
