"""What a prior variance buys and what it costs: calibration at the data against doubt elsewhere.

The curve is the last layer in closed form along a grid of prior variances, at a temperature of 1 and without
a residual. The choices are what each way of choosing gives, on the same splits of the test set.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

import bitbayes as bb
from bitbayes import metrics
from bitbayes.palette import OTHERS
from paper.drawing.direct_labels import Label, place_labels
from paper.drawing.pictures import COLOURS as METHOD_COLOURS
from paper.drawing.pictures import MARKERS as METHOD_MARKERS
from paper.drawing.pictures import TEXT_COLOUR, make_panels, styled
from paper.methods import BatchLoader, Points, ignore_edge_warnings
from paper.problem import PROBLEMS
from paper.progress import track
from paper.report import Report, format_mean_std, format_range
from paper.session import Session
from paper.study import LARGEST_VARIANCE, SMALLEST_VARIANCE, Study

FAR = 2000
FAR_NAME = f"Noise × {FAR}"
LOW, HIGH = math.log(SMALLEST_VARIANCE), math.log(LARGEST_VARIANCE)
PRIOR_VARIANCES = [math.exp(LOW + (HIGH - LOW) * i / 40) for i in range(41)]
# In the order of the table.
TITLES = {
    "plain": "Plain network",
    "temperature": "Temperature scaling",
    "nll": "Last layer, NLL",
    "evidence": "Last layer, evidence",
    "ood": "Last layer, paper's objective",
    "default": "bitbayes (default)",
}
# In pictures.
NAMES = {
    "plain": "plain network",
    "temperature": "temperature scaling",
    "nll": "σ₀² by NLL",
    "evidence": "σ₀² by evidence",
    "ood": "σ₀² by the paper's objective",
    "default": "bitbayes (default)",
}
# As in the other pictures, which have no "nll" and no "evidence".
COLOURS = {
    **{key: METHOD_COLOURS[key] for key in ("plain", "temperature", "default")},
    "ood": METHOD_COLOURS["ours"],
    "nll": OTHERS[0].light,
    "evidence": OTHERS[1].light,
}
MARKERS = {
    **{key: METHOD_MARKERS[key] for key in ("plain", "temperature", "default")},
    "ood": METHOD_MARKERS["ours"],
    "nll": OTHERS[0].marker,
    "evidence": OTHERS[1].marker,
}
# They differ so that markers on top of each other stay visible.
SIZES = {"plain": 11, "temperature": 9, "nll": 7, "evidence": 9, "ood": 8, "default": 10}
CURVE_COLOUR = "#b5b5b5"
LEAST_ECE = 0.01  # in %, because a logarithmic axis has no 0
# The prior variances that are named along the curve.
NAMED_VARIANCES = (1e-2, 1.0, 1e2)
# The ways to choose the prior variance of the curve.
OBJECTIVES: tuple[Literal["nll", "evidence", "ood"], ...] = ("nll", "evidence", "ood")

# NLL, ECE, mean confidence far away, and AUROC by set of near outliers.
Quantities = dict[str, Any]


class Sets(NamedTuple):
    """Points that are passed once, for all trials."""

    train: Points
    near: dict[str, Points]  # other images
    far: Points

    @classmethod
    def of(cls, study: Study) -> "Sets":
        extract = study.network.extract_features
        train, far = extract(study.problem.train.images), extract(FAR * study.draw_noise(0))
        return cls(train, study.outliers, far)

    def outliers(self) -> dict[str, Points]:
        return self.near | {FAR_NAME: self.far}


def measure(session: Session) -> dict[str, Any]:
    """Measure the curve, and in every trial each choice."""
    study = session.study("plain")
    sets, labels = Sets.of(study), study.problem.train.labels
    last = bb.Laplace(study.network.head, residual=False)
    last.fit(BatchLoader(sets.train.features, labels), progress=False)
    whole = bb.Laplace(study.network.whole)
    whole.fit(BatchLoader(sets.train.images, labels), progress=False)
    trials = track(range(study.trials), f"trade-off, choices ({study.problem.name})", study.progress)
    return {
        "problem": study.problem.title,
        "classes": study.problem.classes,
        "near": list(sets.near),
        "curve": _measure_curve(study, sets, last),
        "trials": [_measure_choices(study, sets, last, whole, trial) for trial in trials],
    }


def _measure_curve(study: Study, sets: Sets, last: bb.Laplace) -> list[Quantities]:
    """The means over the trials at each prior variance. Every set is predicted once for all trials."""
    rows = [study.split(trial)[1].cpu() for trial in range(study.trials)]
    labels = study.problem.test.labels.cpu()
    found = []
    for variance in track(PRIOR_VARIANCES, f"trade-off, curve ({study.problem.name})", study.progress):
        last.prior_variance = variance
        probs, inside = (predict(study.test.features).cpu() for predict in (last.predict_proba, last.score))
        outside = {name: last.score(points.features).cpu() for name, points in sets.near.items()}
        found.append(
            {
                "prior_variance": variance,
                "temperature": last.temperature,
                "nll": statistics.fmean(metrics.nll(probs[own], labels[own]) for own in rows),
                "ece": statistics.fmean(metrics.ece(probs[own], labels[own]) for own in rows),
                "far": metrics.mmc(last.predict_proba(sets.far.features)),
                "auroc": {
                    name: statistics.fmean(metrics.auroc(inside[own], scores) for own in rows)
                    for name, scores in outside.items()
                },
            }
        )
    return found


def _measure_choices(
    study: Study, sets: Sets, last: bb.Laplace, whole: bb.Laplace, trial: int
) -> dict[str, Quantities]:
    """What each way of choosing gives on the test points of a trial."""
    validation, test = (study.test[rows] for rows in study.split(trial))
    validation_labels, test_labels = (study.problem.test.labels[rows] for rows in study.split(trial))
    found = {}

    scaled = bb.TemperatureScaling(study.network.head)
    scaled.temperature = 1.0
    found["plain"] = _rate_scaled(scaled, test.features, test_labels, sets)
    with ignore_edge_warnings():
        scaled.fit([(validation.features, validation_labels)], progress=False)
    found["temperature"] = _rate_scaled(scaled, test.features, test_labels, sets)

    # Not the noise on which the methods are tested.
    noise = study.network.extract_features(study.draw_noise(500 + trial)).features[: len(validation_labels)]
    features = {name: points.features for name, points in sets.outliers().items()}
    for objective in OBJECTIVES:
        with ignore_edge_warnings():
            last.tune(
                [(validation.features, validation_labels)],
                outliers=noise if objective == "ood" else None,
                objective=objective,
                progress=False,
            )
        found[objective] = _rate(last, [(test.features, test_labels)], features)

    images = {name: points.batches() for name, points in sets.outliers().items()}
    whole.tune(BatchLoader(validation.images, validation_labels), progress=False)
    found["default"] = _rate(whole, BatchLoader(test.images, test_labels), images)
    return found


def _rate(bayes: bb.Laplace, test: Any, outliers: Mapping[str, Any]) -> Quantities:
    """The quantities of a tuned Laplace, which tells outliers from data by `score`."""
    found = bayes.evaluate(test, outliers=outliers, progress=False)
    return {
        "prior_variance": bayes.prior_variance,
        "temperature": bayes.temperature,
        "nll": found["nll"],
        "ece": found["ece"],
        "far": found[f"{FAR_NAME}/mmc"],
        "auroc": {name: found[f"{name}/auroc"] for name in outliers if name != FAR_NAME},
    }


def _rate_scaled(scaled: bb.TemperatureScaling, test: Tensor, labels: Tensor, sets: Sets) -> Quantities:
    """The quantities of a network with a temperature, which tells outliers by the largest probability."""
    probs = scaled.predict_proba(test)
    return {
        "prior_variance": None,
        "temperature": scaled.temperature,
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "far": metrics.mmc(scaled.predict_proba(sets.far.features)),
        "auroc": {
            name: metrics.auroc(probs, scaled.predict_proba(points.features))
            for name, points in sets.near.items()
        },
    }


# ---- the table


def show(values: dict[str, Any], report: Report) -> None:
    """Write the table and the picture, and the picture of all data sets that were measured."""
    header = ["Method", "Prior variance σ₀²", "Temperature", "NLL", "ECE, %", f"{FAR_NAME}: confidence, %"]
    header += [f"{name}: AUROC, %" for name in values["near"]]
    report.write_table(
        f"What a prior variance buys and costs: {values['problem']}",
        header,
        [_row(values, key) for key in TITLES],
        f"Mean ± standard deviation over {len(values['trials'])} splits of the test set. AUROC: the plain "
        "network and temperature scaling tell outliers by the largest probability, the others by `score`.",
        "The picture's curve is the last layer at a temperature of 1 and without a residual, at "
        f"{len(values['curve'])} prior variances from {values['curve'][0]['prior_variance']:.0e} to "
        f"{values['curve'][-1]['prior_variance']:.0e}; its numbers are in the JSON file.",
    )
    report.write_picture(lambda: draw(values))
    if report.stem in PROBLEMS:  # other settings have names of their own, and are not part of it
        every = Report(report.name, "all", report.options)
        found = read_measured(report)
        every.write_picture(lambda: draw_all(found))
        report.written += every.written


def read_measured(report: Report) -> list[dict[str, Any]]:
    """The numbers of all data sets that are in the folder, in the order of the problems."""
    found = [Report(report.name, stem, report.options) for stem in PROBLEMS]
    return [each.read_numbers() for each in found if (each.folder / f"{each.stem}.json").exists()]


def _row(values: dict[str, Any], key: str) -> list[str]:
    found = [trial[key] for trial in values["trials"]]
    title = TITLES[key] if key != "default" else f"**{TITLES[key]}**"
    return [
        title,
        _format_chosen([each["prior_variance"] for each in found]),
        _format_chosen([each["temperature"] for each in found]),
        format_mean_std([each["nll"] for each in found], 4),
        format_mean_std([100 * each["ece"] for each in found], 2),
        format_mean_std([100 * each["far"] for each in found]),
        *(format_mean_std([100 * each["auroc"][name] for each in found]) for name in values["near"]),
    ]


def _format_chosen(numbers: list[float | None]) -> str:
    """The range of what was chosen in the trials, or a dash if nothing was.

    >>> _format_chosen([0.5, 2.0]), _format_chosen([None])
    ('0.5 to 2', '–')
    """
    known = [each for each in numbers if each is not None]
    return format_range(known) if known else "–"


# ---- the pictures


class Panel(NamedTuple):
    """What goes to the right, against the ECE."""

    title: str
    label: str
    best: float  # the end at which it is best: 0 is left, 1 is right
    limits: tuple[float, float] | None
    quantity: Callable[[Quantities], float]  # in %


def _confidence(found: Quantities) -> float:
    return float(100 * found["far"])


def _auroc(found: Quantities) -> float:
    """The mean over the sets of near outliers."""
    return 100 * statistics.fmean(found["auroc"].values())


def _ece(found: Quantities) -> float:
    return max(LEAST_ECE, float(100 * found["ece"]))


PANELS = (
    Panel(
        "Far from the data", f"← better        Mean confidence on noise × {FAR}, %", 0, (-6, 106), _confidence
    ),
    Panel("Other images", "Mean AUROC against the test data, %        better →", 1, None, _auroc),
)
ECE_LABEL = "← better    ECE on test data, %"  # turned by 90°, the arrow points down


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw the curve along the prior variance and the choices, with their names beside them."""
    figure, (row,) = make_panels(1, 2, 3.6, sharey=True)
    for axes, panel in zip(row, PANELS, strict=True):
        _plot(axes, values, panel, 1.0)
        named = [_nearest(values, variance) for variance in NAMED_VARIANCES]
        x, y = ([quantity(each) for each in named] for quantity in (panel.quantity, _ece))
        axes.plot(x, y, "o", color=CURVE_COLOUR, markersize=5, zorder=2)
        axes.set(title=panel.title, xlabel=panel.label)
    row[0].set_ylabel(ECE_LABEL)
    figure.suptitle(f"{values['problem']}: what a prior variance σ₀² buys and costs")
    for axes, panel in zip(row, PANELS, strict=True):
        place_labels(axes, _labels(values, panel), _curve(values, panel))
    return figure


@styled
def draw_all(measured: list[dict[str, Any]]) -> Figure:
    """Draw a column of panels for each data set, with one legend for all."""
    figure = Figure(figsize=(9.5, 5.0), layout="constrained")
    all_axes = figure.subplots(2, len(measured), squeeze=False, sharey=True)
    for row, panel in zip(all_axes, PANELS, strict=True):
        for axes, values in zip(row, measured, strict=True):
            _plot(axes, values, panel, 0.8)
            axes.set_title(values["problem"] if panel is PANELS[0] else "")
        # Below the middle panel, or between the two in the middle.
        row[len(row) // 2].set_xlabel(f"{panel.title}:   {panel.label}", x=0.5 if len(row) % 2 else 0)
        row[0].set_ylabel(ECE_LABEL.replace(" on test data", ""))
    handles, names = all_axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4)
    return figure


def _plot(axes: Axes, values: dict[str, Any], panel: Panel, size: float) -> None:
    """Draw the curve and the choices, and tint the corner in which both quantities are best."""
    axes.set_yscale("log")
    for key in reversed(TITLES):
        x, y = _mean(values, key, panel.quantity), _mean(values, key, _ece)
        axes.plot([x], [y], **_style(key, size), label=NAMES[key])
    axes.plot(
        *_curve(values, panel),
        color=CURVE_COLOUR,
        linewidth=2,
        zorder=1,
        label="last layer, σ₀² from 10⁻⁶ to 10¹⁰",
    )
    axes.margins(0.07, 0.1)
    axes.set_xlim(panel.limits)
    corner = Ellipse(
        (panel.best, 0), 0.9, 0.9, transform=axes.transAxes, color=COLOURS["default"], alpha=0.08
    )
    axes.add_patch(corner).set(zorder=0, linewidth=0)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _style(key: str, size: float) -> dict[str, Any]:
    return {
        "marker": MARKERS[key],
        "color": COLOURS[key],
        "linestyle": "none",
        "markersize": size * SIZES[key],
        "markeredgecolor": "white",
        "markeredgewidth": 0.7,
        "zorder": 20 - SIZES[key] if key != "default" else 20,  # the smallest on top
    }


def _curve(values: dict[str, Any], panel: Panel) -> tuple[list[float], list[float]]:
    points = values["curve"]
    return [panel.quantity(each) for each in points], [_ece(each) for each in points]


def _labels(values: dict[str, Any], panel: Panel) -> list[Label]:
    """The names of the choices, bitbayes first, and of some prior variances along the curve."""
    found = []
    for key in reversed(TITLES):
        bold = {"fontweight": "bold", "fontsize": 12} if key == "default" else {}
        x, y = _mean(values, key, panel.quantity), _mean(values, key, _ece)
        found.append(Label(NAMES[key], x, y, {"color": COLOURS[key], **bold}, SIZES[key] / 2))
    for variance in NAMED_VARIANCES:
        point = _nearest(values, variance)
        style = {"color": TEXT_COLOUR, "fontsize": 8}
        found.append(
            Label(f"σ₀² = {variance:g}", panel.quantity(point), _ece(point), style, 3, optional=True)
        )
    return found


def _nearest(values: dict[str, Any], variance: float) -> Quantities:
    """The point of the curve whose prior variance is nearest."""
    points: list[Quantities] = values["curve"]
    return min(points, key=lambda each: abs(math.log(each["prior_variance"] / variance)))


def _mean(values: dict[str, Any], key: str, quantity: Callable[[Quantities], float]) -> float:
    return statistics.fmean(quantity(trial[key]) for trial in values["trials"])
