"""The results of an audit: plain numbers, strings, lists and dicts, all of which JSON can hold."""

from dataclasses import asdict, dataclass
from typing import Any

SCHEMA_VERSION = 2
# The last is left out where uniform noise means nothing, or the network fails on it.
AUDITED_METHODS = ("plain", "temperature", "bitbayes", "paper")


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

    `confidence` is the mean over the outliers. `auroc` and `fpr95` measure how well the outliers are
    separated from the test data: by the confidence, or by `Laplace.score` for a method with a Gaussian.
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
    """The exact limits of bitbayes' confidence at δ·x as δ → ∞, for `size` test inputs x of one class."""

    label: int
    size: int
    mean: float
    largest: float


@dataclass(frozen=True)
class Cost:
    """The time of the steps of bitbayes, relative to a plain forward pass over the same data.

    The time for loading data is not counted.
    """

    fit: float
    tune: float
    predict: float
    forward_milliseconds: float  # the plain network on one test input


@dataclass(frozen=True)
class Audit:
    """Everything that `bitbayes.auditing.audit` measures. All rates are fractions between 0 and 1.

    `test` has the methods in the order of `AUDITED_METHODS`. `chosen` holds the numbers that each
    method chose on the validation data.
    """

    subject: str
    classes: int
    sizes: dict[str, int]
    test: dict[str, TestScores]
    outliers: list[OutlierSet]
    ray: RayConfidence | None
    changed_labels: int  # by bitbayes
    chosen: dict[str, dict[str, float]]
    cost: Cost
    seconds: float
    finished: str  # UTC, in ISO format
    seed: int
    versions: dict[str, str]
    notes: list[str]
    infinity: list[ClassLimits]  # empty if the limits are not known

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods, in the order of the columns."""
        return tuple(self.test)

    def as_dict(self) -> dict[str, Any]:
        """Return nested dicts and lists for JSON. The key "schema" holds the version of the layout."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}
