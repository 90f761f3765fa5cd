"""The results of an audit: plain numbers, strings, lists and dicts, all of which JSON can hold."""

from dataclasses import asdict, dataclass
from typing import Any

SCHEMA_VERSION = 1
AUDITED_METHODS = ("plain", "temperature", "bayesian")


@dataclass(frozen=True)
class ReliabilityDiagram:
    """The test inputs in 15 bins of confidence.

    Each list has one entry per bin: the number of inputs, their mean confidence, and the share of them that
    is classified correctly. The last two are None in an empty bin.
    """

    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


@dataclass(frozen=True)
class TestScores:
    """The scores of one method on the test data.

    `confidence` is the mean over the inputs. `histogram` counts confidences in 20 equal bins from 0 to 1.
    """

    __test__ = False  # pytest would take this class for a test because of its name

    accuracy: float
    confidence: float
    nll: float
    ece: float
    brier: float
    reliability: ReliabilityDiagram
    histogram: list[int]


@dataclass(frozen=True)
class OutlierScores:
    """The scores of one method on one set of outliers.

    `confidence` is the mean over the outliers. `auroc` and `fpr95` measure how well the confidence separates
    the outliers from the test data.
    """

    confidence: float
    auroc: float
    fpr95: float
    histogram: list[int]


@dataclass(frozen=True)
class OutlierSet:
    """A set of outliers with the scores of each method.

    `kind` is "given" for a set from the user, "noise" for uniform noise, and "far" for scaled inputs.
    """

    name: str
    kind: str
    size: int
    scores: dict[str, OutlierScores]


@dataclass(frozen=True)
class RayConfidence:
    """The confidence at δ·x over `size` test inputs x, for each δ.

    `mean`, `low` and `high` map a method to one number per δ: the mean, the 10 % quantile and the 90 %
    quantile.
    """

    delta: list[float]
    size: int
    mean: dict[str, list[float]]
    low: dict[str, list[float]]
    high: dict[str, list[float]]


@dataclass(frozen=True)
class ClassLimits:
    """The exact limits of the Bayesian confidence at δ·x as δ → ∞, for `size` test inputs x of one class."""

    label: int
    size: int
    mean: float
    largest: float


@dataclass(frozen=True)
class Cost:
    """The time of the Bayesian steps, relative to a plain forward pass over the same data.

    The time for loading data is not counted.
    """

    fit: float
    tune: float
    predict: float
    forward_milliseconds: float  # the plain network on one test input


@dataclass(frozen=True)
class Audit:
    """Everything that `bitbayes.auditing.audit` measures. All rates are fractions between 0 and 1."""

    subject: str
    classes: int
    sizes: dict[str, int]
    test: dict[str, TestScores]
    outliers: list[OutlierSet]
    ray: RayConfidence | None
    changed_labels: int
    prior_variance: float
    temperature: float
    cost: Cost
    seconds: float
    finished: str  # UTC, in ISO format
    seed: int
    versions: dict[str, str]
    notes: list[str]
    infinity: list[ClassLimits]  # empty if the limits are not known

    def as_dict(self) -> dict[str, Any]:
        """Return nested dicts and lists for JSON. The key "schema" holds the version of the layout."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}
