"""The cost of a candidate: on each point of the validation data, and on each outlier.

An objective is a small frozen object. Another one is another class with the same functions, and its name in
`OBJECTIVES`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Protocol

from torch import Tensor

from bitbayes.errors import ArgumentError, one_of
from bitbayes.likelihoods import Likelihood

PENALTIES = ("entropy", "uniform")


class Objective(Protocol):
    """The total cost of a candidate is mean `data_cost` + `outlier_weight` × mean `outlier_cost`."""

    @property
    def outlier_weight(self) -> float:
        """0 if outliers are not used."""

    def data_cost(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The cost of each labelled point, (n,), from drop-in logits (n, k)."""

    def outlier_cost(self, logits: Tensor) -> Tensor:
        """The cost of each outlier, (n,), from drop-in logits (n, k)."""


@dataclass(frozen=True)
class ValidationLikelihood:
    """The objective "nll": −log p(y) on validation data."""

    likelihood: Likelihood
    outlier_weight: float = 0.0

    def data_cost(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.likelihood.prediction_losses(logits, labels)

    def outlier_cost(self, logits: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class PaperObjective(ValidationLikelihood):
    """The objective "ood": −log p(y) on validation data, and how sure the prediction is on outliers.

    `penalty`: "entropy", minus the entropy of the prediction, or "uniform", the cross-entropy from the
    uniform vector to it.
    """

    penalty: str = "entropy"

    def outlier_cost(self, logits: Tensor) -> Tensor:
        log_p = self.likelihood.log_decisions(logits)  # (n, decisions, choices)
        each = -log_p.mean(2) if self.penalty == "uniform" else (log_p.exp() * log_p).sum(2)
        return each.sum(1)


# By name; made from the likelihood, and from the arguments `weight` and `penalty` of `tune`.
OBJECTIVES: dict[str, Callable[[Likelihood, float, str], Objective]] = {
    "ood": PaperObjective,
    "nll": lambda likelihood, weight, penalty: ValidationLikelihood(likelihood),
}
EVIDENCE = "evidence"  # which uses no validation data
CALIBRATED = "calibrated"  # which chooses a temperature too


def check_objective(name: str, weight: float, penalty: str) -> None:
    """Raise on unknown names, and if the weight is not a number ≥ 0."""
    one_of("objective", name, (CALIBRATED, *OBJECTIVES, EVIDENCE))
    one_of("penalty", penalty, PENALTIES)
    if not isinstance(weight, Real) or not math.isfinite(weight) or weight < 0:
        raise ArgumentError(f"weight={weight!r}: expected a number that is not negative")


def objective_for(name: str, likelihood: Likelihood, weight: float, penalty: str) -> Objective:
    """The objective "ood" or "nll"."""
    return OBJECTIVES[name](likelihood, float(weight), penalty)
