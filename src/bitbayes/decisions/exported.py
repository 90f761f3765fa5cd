"""What an exported graph decides beside its predictions: which inputs to accept, and their sets."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor

from bitbayes.decisions.conformal_interval import ConformalInterval
from bitbayes.decisions.prediction_sets import PredictionSets
from bitbayes.decisions.risk_threshold import RiskThreshold
from bitbayes.errors import ArgumentError
from bitbayes.predicting import Predictive, Predictor

# The outputs of the graph.
ACCEPT, SETS, INTERVAL = "accept", "sets", "interval"
# What a file says of a promise about the risk.
PROMISE = ("risk", "level", "points", "accepted", "errors", "bound")


@dataclass(frozen=True)
class Decisions:
    """Accept x if score(x) ≥ `score` and confidence(x) ≥ `confidence`; one that is None does not count.

    The risk that `confidence` promises is that among the accepted inputs, because `score` is the threshold
    that its calibration points had to reach.

    sets: the prediction sets, or in regression the intervals; None without.
    """

    score: float | None
    confidence: RiskThreshold | None
    sets: PredictionSets | ConformalInterval | None

    @classmethod
    def checked(
        cls,
        threshold: float | None,
        sets: PredictionSets | ConformalInterval | None,
        predictor: Predictor,
        predictive: Predictive,
    ) -> Self:
        """The decisions of `Laplace.export(…, threshold=…, sets=…)`; raises if they cannot be in a graph.

        Args:
            threshold: a score, or a confidence with a promise.
            sets: calibrated with the same posterior, settings and predictive as the graph.
            predictor: what the graph predicts with.
            predictive: that of the graph.
        """
        _check_sets(sets, predictor, predictive)
        if threshold is None:
            return cls(None, None, sets)
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
            raise ArgumentError(
                f"threshold={threshold!r}: expected a score or a RiskThreshold, as `threshold` returns them. "
                "A promise about inputs with a large enough score, too, is made with that score from the "
                "beginning: it is the `score_threshold` of the RiskThreshold"
            )
        if not isinstance(threshold, RiskThreshold):
            return cls(_finite(threshold, "threshold"), None, sets)
        predictor.posterior.likelihood.require_classes()
        _finite(threshold, "threshold")
        score = threshold.score_threshold
        return cls(None if score is None else _finite(score, "score_threshold"), threshold, sets)

    @property
    def by_score(self) -> bool:
        """Whether a score is needed."""
        refuses = isinstance(self.sets, PredictionSets) and self.sets.threshold is not None
        return self.score is not None or refuses

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the graph's outputs."""
        accept = (ACCEPT,) if self.score is not None or self.confidence is not None else ()
        if self.sets is None:
            return accept
        return (*accept, SETS if isinstance(self.sets, PredictionSets) else INTERVAL)

    def accept(self, scores: Tensor | None, confidences: Tensor | None) -> Tensor:
        """Return whether to accept each input, (n,), from their scores and confidences; never NaN."""
        if self.score is None:
            return _reach(confidences, self.confidence)
        accepted = _reach(scores, self.score)
        return accepted if self.confidence is None else accepted & _reach(confidences, self.confidence)

    def sets_of(self, probabilities: Tensor, scores: Tensor | None) -> Tensor:
        """Return the prediction sets, (n, k), from probabilities (n, k) and scores (n,)."""
        assert isinstance(self.sets, PredictionSets)
        least = self.sets.threshold
        return self.sets.of(probabilities, None if least is None else _reach(scores, least))

    def intervals_of(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return the intervals, (n, outputs, 2), from means and deviations (n, outputs)."""
        assert isinstance(self.sets, ConformalInterval)
        return self.sets.of(mean, deviation)

    def about(self) -> dict[str, Any]:
        """What the file says of the decisions, by the keys of its metadata."""
        found: dict[str, Any] = {}
        if ACCEPT in self.outputs:
            found["threshold"] = {} if self.score is None else {"score": self.score}
        if self.confidence is not None:
            promise = {name: getattr(self.confidence, name) for name in PROMISE}
            found["threshold"] |= {"confidence": float(self.confidence), **promise}
        if self.sets is not None:
            found[self.outputs[-1]] = self.sets.as_json()
        return found


def _reach(ranks: Tensor | None, least: float | None) -> Tensor:
    """Return whether each rank (n,) is at least this number, which is rounded to the dtype of the ranks."""
    assert ranks is not None and least is not None
    # A tensor, because ONNX would round a number to float32.
    return ranks >= torch.tensor(float(least), dtype=ranks.dtype, device=ranks.device)


def _finite(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise ArgumentError(f"{name}={value!r}: expected a finite number, as `threshold` returns it")
    return float(value)


def _check_sets(
    sets: PredictionSets | ConformalInterval | None, predictor: Predictor, predictive: Predictive
) -> None:
    """Raise on sets that a graph cannot have, or that were calibrated for other predictions than its own."""
    if sets is None:
        return
    if not isinstance(sets, (PredictionSets, ConformalInterval)):
        raise ArgumentError(
            f"sets is a {type(sets).__name__}: expected what `sets` or `conformal_interval` returns"
        )
    if isinstance(sets, PredictionSets) and sets.groups is not None:
        raise ArgumentError(
            "these sets were calibrated within groups, which a graph does not know: calibrate them without, "
            "or with within='class'"
        )
    if sets.predictor.posterior is not predictor.posterior:
        raise ArgumentError(
            "the sets were calibrated with another Laplace, or before the last `fit`, `update` or change of "
            "`covariance`: calibrate them again"
        )
    then, now = asdict(sets.predictor.settings), asdict(predictor.settings)
    changed = [name for name in now if then[name] != now[name]]
    if isinstance(sets, PredictionSets) and sets.predictive.name != predictive.name:
        changed.append("predictive")
    if changed:
        raise ArgumentError(
            f"the sets were calibrated with other settings ({', '.join(changed)}): calibrate them again, "
            "or set these back"
        )
