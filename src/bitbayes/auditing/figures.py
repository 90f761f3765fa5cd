"""The report's pictures, as SVG. One colour and one marker for each method, in every picture."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bitbayes.auditing.findings import METHODS, Audit
from bitbayes.auditing.words import NAMES

# Three of Okabe and Ito's colours, which people of all kinds of colour vision tell apart.
COLOURS = {"plain": "#D55E00", "temperature": "#009E73", "bayesian": "#0072B2"}
MARKERS = {"plain": "o", "temperature": "^", "bayesian": "s"}
WIDTHS = {"plain": 4.5, "temperature": 2.5, "bayesian": 1.5}  # lines on top of each other all show
INK, FAINT = "#333333", "#8a8a8a"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "bitbayes",  # the same numbers give the same file
    "svg.fonttype": "none",  # letters stay letters: a smaller file, and the reader's own fonts
}

P = ParamSpec("P")


def _svg(draw: Callable[P, Figure]) -> Callable[P, str]:
    """The drawn figure as a data URI: a picture of its own, so that no two pictures' ids can clash."""

    def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            # A name in a script that matplotlib's font lacks: the browser has a font for it.
            warnings.filterwarnings("ignore", "Glyph")
            file = io.BytesIO()
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            draw(*args, **kwargs).savefig(file, format="svg", transparent=True, metadata=nothing)
        return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()

    return drawn


@_svg
def ray_picture(audit: Audit) -> Figure:
    """Confidence against δ: mean lines in bands from the 10 % to the 90 % quantile, and 1/k."""
    assert audit.ray is not None
    figure, axes = _blank(6.4, 3.7)
    for method in METHODS:
        low, mean, high = (
            [100 * value for value in part[method]]
            for part in (audit.ray.low, audit.ray.mean, audit.ray.high)
        )
        axes.fill_between(audit.ray.delta, low, high, color=COLOURS[method], alpha=0.13, linewidth=0)
        axes.plot(
            audit.ray.delta,
            mean,
            color=COLOURS[method],
            marker=MARKERS[method],
            linewidth=WIDTHS[method],
            markersize=3 + WIDTHS[method],
            label=NAMES[method],
        )
    guess = 100 / audit.classes
    axes.axhline(guess, color=INK, linestyle="--", linewidth=1, label=f"Blind guess, 1/{audit.classes}")
    axes.set(
        xscale="log", xlabel="δ: test inputs are multiplied by this", ylabel="Confidence, %", ylim=(0, 103)
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    figure.legend(loc="outside upper left", ncols=4, frameon=False, columnspacing=1.2, handlelength=1.6)
    return figure


@_svg
def reliability_picture(audit: Audit, method: str) -> Figure:
    """Accuracy against confidence, bin by bin; a marker's area goes with its number of inputs."""
    bins = audit.test[method].reliability
    figure, axes = _blank(3.1, 3.1)
    axes.plot([0, 100], [0, 100], color=FAINT, linestyle="--", linewidth=1)
    points = [
        (100 * confidence, 100 * accuracy, count)
        for count, confidence, accuracy in zip(bins.count, bins.confidence, bins.accuracy, strict=True)
        if confidence is not None and accuracy is not None
    ]
    x, y, counts = zip(*points, strict=True)
    areas = [12 + 200 * count / sum(counts) for count in counts]
    axes.scatter(
        x, y, s=areas, color=COLOURS[method], marker=MARKERS[method], alpha=0.85, clip_on=False, zorder=3
    )
    axes.set(xlabel="Confidence, %", ylabel="Right, %", xlim=(0, 100), ylim=(0, 100), aspect="equal")
    return figure


@_svg
def histogram_picture(audit: Audit, method: str) -> Figure:
    """One small histogram of confidences for each set, the test data on top; a line marks the mean."""
    scores = audit.test[method]
    sets = [("Test data", scores.histogram, scores.confidence, INK)]
    for outlier in audit.outliers:
        found = outlier.scores[method]
        sets.append((outlier.name, found.histogram, found.confidence, COLOURS[method]))
    with matplotlib.rc_context({"axes.spines.left": False}):
        figure = Figure(figsize=(3.1, 0.5 + 0.62 * len(sets)), layout="constrained")
        rows = figure.subplots(len(sets), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, counts, mean, colour) in zip(rows, sets, strict=True):
        width = 100 / len(counts)
        edges = [width * (b + 0.5) for b in range(len(counts))]
        axes.bar(edges, counts, width=0.9 * width, color=colour, alpha=0.8)
        axes.axvline(100 * mean, color=colour, linewidth=1.2, linestyle=":")
        axes.set(xlim=(0, 100), yticks=[], ylim=(0, 1.05 * max(counts)))
        axes.set_title(_short(name), loc="left", fontsize=9, pad=2)
        axes.tick_params(bottom=False)
    rows[-1].set_xlabel("Confidence, %")
    return figure


def _blank(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _short(name: str, most: int = 36) -> str:
    # A dollar sign would begin a formula.
    return (name if len(name) <= most else name[: most - 1] + "…").replace("$", r"\$")
