"""What an audit finds, in plain numbers: no tensors, no models, and nothing that JSON cannot hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 1
METHODS = ("plain", "temperature", "bayesian")


@dataclass(frozen=True)
class Reliability:
    """For each of 15 bins of confidence: how many inputs, their mean confidence, how often they are right."""

    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


@dataclass(frozen=True)
class TestScores:
    """One method on the test data; `histogram` counts confidences in 20 equal bins from 0 to 1."""

    __test__ = False  # no test class, whatever its name makes pytest think

    accuracy: float
    confidence: float
    nll: float
    ece: float
    brier: float
    reliability: Reliability
    histogram: list[int]


@dataclass(frozen=True)
class OutlierScores:
    """One method on one set of outliers: mean confidence, and how well that tells them from test data."""

    confidence: float
    auroc: float
    fpr95: float
    histogram: list[int]


@dataclass(frozen=True)
class OutlierSet:
    """A set of outliers with each method's scores. `kind`: "given" by the user, "noise" or "far"."""

    name: str
    kind: str
    size: int
    scores: dict[str, OutlierScores]


@dataclass(frozen=True)
class Ray:
    """Confidence at δ·x over test inputs x, by method: mean, 10 % and 90 % quantile for each δ."""

    delta: list[float]
    size: int
    mean: dict[str, list[float]]
    low: dict[str, list[float]]
    high: dict[str, list[float]]


@dataclass(frozen=True)
class AtInfinity:
    """Test inputs x of one class: what the Bayesian confidence at δ·x tends to as δ → ∞, exactly."""

    label: int
    size: int
    mean: float
    largest: float


@dataclass(frozen=True)
class Cost:
    """What the Bayesian steps cost, in plain forward passes over the same data; loading is not counted."""

    fit: float
    tune: float
    predict: float
    forward_milliseconds: float  # one test input through the plain network


@dataclass(frozen=True)
class Audit:
    """Everything that `bitbayes.auditing.measure.audit` found. Rates are fractions, not per cent."""

    subject: str
    classes: int
    sizes: dict[str, int]
    test: dict[str, TestScores]
    outliers: list[OutlierSet]
    ray: Ray | None
    changed_labels: int
    prior_variance: float
    temperature: float
    cost: Cost
    seconds: float
    finished: str  # UTC
    seed: int
    versions: dict[str, str]
    notes: list[str]
    infinity: list[AtInfinity] = field(default_factory=list)  # empty where it is not known

    def as_dict(self) -> dict[str, Any]:
        """Nested dicts and lists for JSON, with the version of this layout under "schema"."""
        return {"schema": SCHEMA, **asdict(self)}
