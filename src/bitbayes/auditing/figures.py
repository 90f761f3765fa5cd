"""The pictures of the report, as SVG. A method has the same colour and marker in all of them."""

import base64
import io
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bitbayes.auditing.findings import Audit, OutlierScores, RayConfidence, TestScores
from bitbayes.auditing.words import METHOD_TITLES

# From the palette of Okabe and Ito, whose colours colour-blind people can tell apart.
METHOD_COLOURS = {"plain": "#D55E00", "temperature": "#009E73", "bitbayes": "#0072B2", "paper": "#CC79A7"}
METHOD_MARKERS = {"plain": "o", "temperature": "^", "bitbayes": "s", "paper": "D"}
# In points. The widths differ so that lines on top of each other stay visible.
LINE_WIDTHS = {"plain": 4.5, "temperature": 2.5, "bitbayes": 1.5, "paper": 1.5}
TEXT_COLOUR, FAINT_COLOUR = "#333333", "#8a8a8a"
FIGURE_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.color": TEXT_COLOUR,
    "axes.edgecolor": FAINT_COLOUR,
    "axes.labelcolor": TEXT_COLOUR,
    "xtick.color": TEXT_COLOUR,
    "ytick.color": TEXT_COLOUR,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "bitbayes",  # equal numbers give equal files
    "svg.fonttype": "none",  # text stays text: the file is smaller, and the reader's fonts are used
}

P = ParamSpec("P")


def _as_data_uri(draw: Callable[P, Figure]) -> Callable[P, str]:
    """Make a drawing function return its figure as a data URI.

    As a data URI each SVG has its own ids. Inside the HTML of the page, the ids of two pictures could clash.
    """

    def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
        with matplotlib.rc_context(FIGURE_STYLE), warnings.catch_warnings():
            # Matplotlib's font may lack a letter of a name. The browser has a font for it.
            warnings.filterwarnings("ignore", "Glyph")
            file = io.BytesIO()
            no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            draw(*args, **kwargs).savefig(file, format="svg", transparent=True, metadata=no_metadata)
        return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()

    return drawn


@_as_data_uri
def draw_ray(ray: RayConfidence, classes: int) -> Figure:
    """Draw the mean confidence against δ, bands from the 10 % to the 90 % quantile, and a line at 1/k."""
    figure, axes = _new_figure(6.4, 3.7)
    for method in ray.mean:
        low, mean, high = ([100 * value for value in part[method]] for part in (ray.low, ray.mean, ray.high))
        axes.fill_between(ray.delta, low, high, color=METHOD_COLOURS[method], alpha=0.13, linewidth=0)
        axes.plot(
            ray.delta,
            mean,
            color=METHOD_COLOURS[method],
            marker=METHOD_MARKERS[method],
            linewidth=LINE_WIDTHS[method],
            markersize=3 + LINE_WIDTHS[method],
            label=METHOD_TITLES[method],
        )
    guess = 100 / classes
    axes.axhline(guess, color=TEXT_COLOUR, linestyle="--", linewidth=1, label=f"Blind guess, 1/{classes}")
    axes.set(
        xscale="log", xlabel="δ: test inputs are multiplied by this", ylabel="Confidence, %", ylim=(0, 103)
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    figure.legend(loc="outside upper left", ncols=3, frameon=False, columnspacing=1.2, handlelength=1.6)
    return figure


@_as_data_uri
def draw_reliability(audit: Audit, method: str) -> Figure:
    """Draw the accuracy against the confidence of each bin. Bins with more inputs have larger markers."""
    bins = audit.test[method].reliability
    figure, axes = _new_figure(3.1, 3.1)
    axes.plot([0, 100], [0, 100], color=FAINT_COLOUR, linestyle="--", linewidth=1)
    points = [
        (100 * confidence, 100 * accuracy, count)
        for count, confidence, accuracy in zip(bins.count, bins.confidence, bins.accuracy, strict=True)
        if confidence is not None and accuracy is not None
    ]
    x, y, counts = zip(*points, strict=True)
    areas = [12 + 200 * count / sum(counts) for count in counts]
    colour, marker = METHOD_COLOURS[method], METHOD_MARKERS[method]
    axes.scatter(x, y, s=areas, color=colour, marker=marker, alpha=0.85, clip_on=False, zorder=3)
    axes.set(xlabel="Confidence, %", ylabel="Right, %", xlim=(0, 100), ylim=(0, 100), aspect="equal")
    return figure


@_as_data_uri
def draw_histograms(audit: Audit, method: str) -> Figure:
    """Draw a histogram of confidences for each data set, the test data on top. A line marks the mean."""
    sets: list[tuple[str, TestScores | OutlierScores, str]] = [("Test data", audit.test[method], TEXT_COLOUR)]
    sets += [(outlier.name, outlier.scores[method], METHOD_COLOURS[method]) for outlier in audit.outliers]
    with matplotlib.rc_context({"axes.spines.left": False}):
        figure = Figure(figsize=(3.1, 0.5 + 0.62 * len(sets)), layout="constrained")
        rows = figure.subplots(len(sets), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, scores, colour) in zip(rows, sets, strict=True):
        counts = scores.histogram
        width = 100 / len(counts)
        centres = [width * (b + 0.5) for b in range(len(counts))]
        axes.bar(centres, counts, width=0.9 * width, color=colour, alpha=0.8)
        axes.axvline(100 * scores.confidence, color=colour, linewidth=1.2, linestyle=":")
        axes.set(xlim=(0, 100), yticks=[], ylim=(0, 1.05 * max(counts)))
        axes.set_title(_shorten(name), loc="left", fontsize=9, pad=2)
        axes.tick_params(bottom=False)
    rows[-1].set_xlabel("Confidence, %")
    return figure


def _new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _shorten(name: str, longest: int = 36) -> str:
    # Matplotlib takes a dollar sign for the start of a formula.
    return (name if len(name) <= longest else name[: longest - 1] + "…").replace("$", r"\$")
