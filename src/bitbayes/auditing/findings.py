"""The results of an audit: plain numbers, strings, lists and dicts, all of which JSON can hold."""

from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA_VERSION = 6
# The columns of an audit of one network.
AUDITED_METHODS = ("plain", "temperature", "energy", "bitbayes")
ADDED = ("temperature", "energy", "bitbayes")  # those of them that are added to a network
MOST_SIDE_BY_SIDE = 4
PAPER = "paper"  # the paper's objective, in the details
# The shares of the test data that a threshold may keep: 50%, 50.5%, …, 100%.
KEPT_SHARES = [share / 200 for share in range(100, 201)]
USUAL_SHARE = 0.95  # the share of FPR95
FEW_POINTS = 30  # of a class or segment: with fewer, an accuracy of 90% has an interval of 20 points and more
# The number of bins of the histograms of the scores.
HISTOGRAM_BINS = 24

# The measures in which each two methods are compared.
COMPARED_ON_TEST = ("accuracy", "nll", "brier", "ece", "aurc", "augrc")
COMPARED_ON_OUTLIERS = ("auroc", "fpr95")

Interval = list[float]  # the low and the high end of a 95% interval


@dataclass(frozen=True)
class ReliabilityDiagram:
    """The test inputs by confidence, in at most ten groups of about equal size, the least sure first.

    Each list has one entry per group: the number of inputs, their mean confidence, and the share of them that
    is classified correctly. `low` and `high` hold 95% of what confidence − accuracy would be if the method
    were perfectly calibrated.
    """

    count: list[int]
    confidence: list[float]
    accuracy: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class TestScores:
    """The scores of one method on the test data.

    `confidence` is the mean over the inputs. `aurc` and `augrc` rank the inputs by their confidence.
    `bitbayes.metrics` defines all of them. `intervals` has a 95% interval for each score, by the bootstrap.
    `floor` is the mean calibration error that a perfectly calibrated method with the same confidences would
    show on as many inputs, and `floor_interval` holds 95% of what it would show.

    `against` says for each other method, by its name, and for each of the measures `COMPARED_ON_TEST`
    whether this method is "better", "worse" or the "same": the same unless the 95% interval of the
    difference, on the same resamples, excludes 0.
    """

    __test__ = False  # pytest would take this class for a test because of its name

    accuracy: float
    confidence: float
    nll: float
    ece: float
    brier: float
    brier_calibration: float
    brier_refinement: float
    smooth_ece: float
    debiased_rmsce: float
    classwise_ece: float
    aurc: float
    augrc: float
    floor: float
    floor_interval: Interval
    reliability: ReliabilityDiagram
    intervals: dict[str, Interval]
    against: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Ranking:
    """How one method ranks inputs: by a score that is larger for inputs that are more like the data.

    Attributes:
        by: "confidence", "score" (`Laplace.score`, or that of a `Predictor`), or "energy".
        threshold: for each of `KEPT_SHARES`, the threshold that keeps this share of the test data.
        low, high: the ends of the histograms' axis. For a confidence p the axis is log(p/(1 − p)).
        position: where the thresholds are on the axis, from 0 (the low end) to 1.
        histogram: the test data in `HISTOGRAM_BINS` bins. The outer bins also hold what is beyond the axis.
    """

    by: str
    threshold: list[float]
    low: float
    high: float
    position: list[float]
    histogram: list[int]


@dataclass(frozen=True)
class OutlierScores:
    """The scores of one method on outliers.

    `confidence` is the mean over the outliers. `auroc` and `fpr95` measure how well the outliers are
    separated from the test data by the method's `Ranking`. `intervals` and `against` are as in
    `TestScores`, with the measures `COMPARED_ON_OUTLIERS`.
    """

    confidence: float
    auroc: float
    fpr95: float
    intervals: dict[str, Interval]
    against: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Passing:
    """The outliers that get through the thresholds of a method's `Ranking`.

    `histogram` is over the axis of the ranking. `share` is the share of the outliers that gets through, for
    each of `KEPT_SHARES`.
    """

    histogram: list[int]
    share: list[float]


@dataclass(frozen=True)
class OutlierSet:
    """A set of outliers with the scores of each method.

    `kind` is "given" for a set from the user, "noise" for uniform noise, and "far" for scaled inputs.
    """

    name: str
    kind: str
    size: int
    scores: dict[str, OutlierScores]
    passing: dict[str, Passing]


@dataclass(frozen=True)
class OutlierGroup:
    """The means over several sets of outliers, with the names of the sets."""

    sets: list[str]
    scores: dict[str, OutlierScores]


@dataclass(frozen=True)
class PriorCurve:
    """The scores of each prior variance, at a temperature of 1 and without a residual.

    Each list has one entry per prior variance. `ece` is on the test data. `auroc` and `fpr95` are means over
    the outliers in `sets`.
    """

    sets: list[str]
    prior_variance: list[float]
    ece: list[float]
    auroc: list[float]
    fpr95: list[float]


@dataclass(frozen=True)
class Example:
    """One input, and the prediction of each method for it.

    Attributes:
        source: "Test data", or the name of the set of outliers.
        kind: "test", or the kind of the set.
        name: what it is: its class, or the name or label of an outlier; None if that is unknown.
        image: the input as a PNG in a data URI, or None if it is no image.
        values: the first numbers of an input that is no image.
        size: how many numbers the input has.
        predicted, confidence: the class and its probability, by method.
        kept_from: by method, the smallest of `KEPT_SHARES` at which the input gets through; None: at none.
    """

    source: str
    kind: str
    name: str | None
    image: str | None
    values: list[float]
    size: int
    predicted: dict[str, int]
    confidence: dict[str, float]
    kept_from: dict[str, float | None]


@dataclass(frozen=True)
class Segment:
    """The test inputs of one class, or with one value of the column that the user named.

    Attributes:
        name: the class, or the value.
        size: how many inputs it has.
        few: whether these are too few to say much: fewer than `FEW_POINTS`.
        accuracy, confidence: by method.
        interval: the 95% interval of the accuracy by method (Clopper and Pearson).
        noise: by method, what the size of confidence − accuracy is at most in 95% of cases if the method is
            perfectly calibrated.
        refused: by method, the share of the inputs below the threshold that accepts 95% of all test inputs.
    """

    name: str
    size: int
    few: bool
    accuracy: dict[str, float]
    confidence: dict[str, float]
    interval: dict[str, Interval]
    noise: dict[str, float]
    refused: dict[str, float]


@dataclass(frozen=True)
class Promise:
    """A threshold on bitbayes' confidence with a guaranteed error rate, found on the test data.

    Among inputs with a confidence of at least `threshold` at most the share `risk` is answered wrong, with a
    probability of `level`. `accepted` of the `points` test inputs have that confidence, and `errors` of these
    are wrong. Without a threshold, `reason` says why none can be promised.
    """

    risk: float
    level: float
    points: int
    threshold: float | None = None
    accepted: int = 0
    errors: int = 0
    reason: str = ""


@dataclass(frozen=True)
class RayConfidence:
    """The confidence at δ·x over `size` test inputs x, for each δ.

    `mean`, `low` and `high` map a method to one number per δ: the mean, the 10% quantile and the 90%
    quantile.
    """

    delta: list[float]
    size: int
    mean: dict[str, list[float]]
    low: dict[str, list[float]]
    high: dict[str, list[float]]


@dataclass(frozen=True)
class ScaledTest:
    """What each method makes of δ·x, over `size` test inputs x: accuracy and mean confidence.

    `refused` is the share below the threshold that accepts 95% of the test inputs themselves.
    `refused_right` is the share that is refused although the answer is right: what refusing costs.
    """

    delta: float
    size: int
    accuracy: dict[str, float]
    confidence: dict[str, float]
    refused: dict[str, float]
    refused_right: dict[str, float]


@dataclass(frozen=True)
class ClassLimits:
    """The exact limits of bitbayes' confidence at δ·x as δ → ∞, for `size` test inputs x of one class.

    `mean` and `largest` are over the limits. From δ = `alpha` (the largest of the class) on, no confidence
    exceeds `certified`; both are None if there is no certificate.
    """

    label: int
    size: int
    mean: float
    largest: float
    alpha: float | None
    certified: float | None


@dataclass(frozen=True)
class Cost:
    """The duration of each step of bitbayes, the median of several runs if a run is short.

    The time for loading data is not counted. `fit` and `tune` are the ratios to one forward pass of the plain
    network over the training data, and `predict` is the ratio of a prediction to a plain one. On a CPU the
    ratios are of processor time, not of wall-clock time, so that they do not depend on other programs.
    """

    fit_seconds: float
    tune_seconds: float
    predict_milliseconds: float  # of one input, in a batch
    forward_milliseconds: float  # the same for the plain network
    fit: float
    tune: float
    predict: float


@dataclass(frozen=True)
class Detail:
    """The scores of a method that has no column: on the test data, and on each set of outliers by name."""

    test: TestScores
    outliers: dict[str, OutlierScores]


@dataclass(frozen=True)
class LabelShift:
    """How the labels of the test data seem to be moved against the classes that the base predicts.

    With `by`, it is often right with y + by modulo the number of classes in place of each label y; None if
    only some labels moved. `moved` are pairs of a label and the class that takes its place.
    """

    accuracy: float
    other_accuracy: float
    by: int | None
    moved: list[list[int]]


@dataclass(frozen=True)
class DataChecks:
    """What was noticed about the data while they were read, for the alerts.

    Attributes:
        copies: how many inputs of a set are copies of inputs of another one, such as "validation in train".
        missing: the classes without an input, by set ("validation", "test").
        shift: how the test labels seem to be moved, or None.
        edges: warnings of the columns' searches that ended at their edge.
    """

    copies: dict[str, int] = field(default_factory=dict)
    missing: dict[str, list[int]] = field(default_factory=dict)
    shift: LabelShift | None = None
    edges: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Audit:
    """Everything that an audit measures. All rates are fractions between 0 and 1.

    `class_names` has a name for each class: "class 0", … unless the user gave others. `features` has a name
    for each number of an input, if the user gave them.

    `test` has the methods in the order of the columns. `base` is the first of them: what the others are
    compared with. `ours` is bitbayes' column, None if there is none. `details` has the methods without a
    column. `groups` holds the means over the "unfamiliar" sets (those of the user; or noise if there are
    none) and over the "far" ones. `chosen` holds the numbers that each method chose on the validation data.

    `sizes` are the numbers of inputs of the sets "train", "validation" and "test" that were given. `errors`
    says of how many of them the base's answer is wrong: `errors["validation"]` and `errors["test"]`.
    `validation_nll` has the log loss on the validation data, by method, of the network's own columns.

    `selective` has for each method and each of `KEPT_SHARES` the error rate among so many test inputs, those
    with the largest confidence. `by_class` and `by_segment` have the worst first, and those with too few
    points last. `segment` is the column that the user named.
    """

    name: str
    classes: int
    class_names: list[str]
    features: list[str]
    base: str
    ours: str | None
    sizes: dict[str, int]
    errors: dict[str, int]
    validation_nll: dict[str, float]
    test: dict[str, TestScores]
    details: dict[str, Detail]
    selective: dict[str, list[float]]
    promise: Promise | None  # None without bitbayes
    by_class: list[Segment]
    segment: str | None
    by_segment: list[Segment]
    rankings: dict[str, Ranking]
    outliers: list[OutlierSet]
    groups: dict[str, OutlierGroup]
    prior_curve: PriorCurve | None
    examples: list[Example]
    scaled: list[ScaledTest]  # empty if the inputs cannot be scaled
    ray: RayConfidence | None
    infinity: list[ClassLimits]  # empty if the limits are not known
    changed_labels: int | None  # by bitbayes
    chosen: dict[str, dict[str, float]]
    cost: Cost | None  # of bitbayes
    seconds: float
    finished: str  # UTC, in ISO format
    seed: int
    command: str
    versions: dict[str, str]
    notes: list[str]
    checks: DataChecks = field(default_factory=DataChecks)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods, in the order of the columns."""
        return tuple(self.test)

    @property
    def own_probabilities(self) -> tuple[str, ...]:
        """The methods without those that have another one's probabilities: the energy has the network's."""
        return tuple(method for method in self.methods if self.rankings[method].by != "energy")

    @property
    def side_by_side(self) -> tuple[str, ...]:
        """The methods that are shown for each input and each set: the base, bitbayes, and the user's own."""
        own = [m for m in self.methods if m not in ADDED or self.ours is None]
        first = [self.base, *([self.ours] if self.ours else [])]
        return tuple(dict.fromkeys([*first, *own]))[:MOST_SIDE_BY_SIDE]

    def to_dict(self) -> dict[str, Any]:
        """Return nested dicts and lists for JSON. The key "schema" holds the version of the layout."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}
