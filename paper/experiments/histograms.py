"""Histograms of confidence: test images, and the same images times δ, binary and multi-class."""

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bitbayes.metrics import auroc
from bitbayes.toys import scale_pixels
from paper.drawing.pictures import COLOURS, TEXT_COLOUR, make_panels, styled
from paper.report import Report
from paper.session import Session
from paper.study import Study, choice_notes

HISTOGRAM_BINS = 40
ROW_HEIGHT = 0.68  # of the picture, in inches
DELTA_BY_KIND = {"multi-class": 2000, "binary": 100}


def measure(session: Session) -> dict[str, Any]:
    studies = {"multi-class": session.study("plain"), "binary": session.binary_study}
    return {kind: measure_histograms(study, DELTA_BY_KIND[kind]) for kind, study in studies.items()}


def measure_histograms(study: Study, delta: int) -> dict[str, Any]:
    """Return the fraction of the points in each bin of confidence, in the first trial."""
    _, rows = study.split(0)
    images = scale_pixels(study.problem.test.images[rows])
    far = study.network.extract_features(delta * images)
    low = 1 / max(2, study.problem.classes)
    found = {}
    for key in study.methods:
        inside, outside = (study.rate(key, study.test, 0).rows(rows), study.rate(key, far, 0))
        if inside.probs is None or outside.probs is None:
            continue
        shares = [
            torch.histc(probs.amax(1).double().cpu(), HISTOGRAM_BINS, low, 1).div(len(probs)).tolist()
            for probs in (inside.probs, outside.probs)
        ]
        separated = 100 * auroc(inside.own_score, outside.own_score)
        found[key] = {"inside": shares[0], "far": shares[1], "auroc": separated}
    return {
        "problem": study.problem.title,
        "delta": delta,
        "low": low,
        **study.describe(*(key for key in study.entries if key in found)),
        "shares": found,
    }


def show(values: dict[str, Any], report: Report) -> None:
    rows = []
    for kind in DELTA_BY_KIND:
        each = values[kind]
        for key, shares in each["shares"].items():
            tops = [f"{100 * shares[name][-1]:.1f}" for name in ("inside", "far")]
            rows.append(
                (
                    f"{each['problem']}, × {each['delta']}",
                    each["methods"][key]["title"],
                    *tops,
                    f"{shares['auroc']:.1f}",
                )
            )
    header = ("Problem", "Method", "Test points in the top bin, %", "Scaled ones, %", "AUROC, %")
    note = "The paper shows pictures alone here. It scales the test images; tables 1 and 2 scale noise."
    chosen = [f"{kind.capitalize()}. {text}" for kind in DELTA_BY_KIND for text in choice_notes(values[kind])]
    report.write_table("Confidence of test images and of the same images scaled", header, rows, note, *chosen)
    report.write_picture(lambda: draw(values))


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw a row for each method and a column for each kind of problem.

    The test images' histogram is filled, and that of the same images times δ is an outline.
    """
    keys = list(dict.fromkeys(key for kind in DELTA_BY_KIND for key in values[kind]["shares"]))
    figure, rows = make_panels(len(keys), len(DELTA_BY_KIND), ROW_HEIGHT, sharex="col", sharey=True)
    for column, kind in zip(zip(*rows, strict=True), DELTA_BY_KIND, strict=True):
        each = values[kind]
        for axes, key in zip(column, keys, strict=True):
            if key in each["shares"]:
                draw_histogram(axes, key, each)
            else:
                axes.set_axis_off()
        heading = f"{each['problem']}: test images, and × {each['delta']}"
        column[0].annotate(
            heading,
            (0.5, 1),
            xycoords="axes fraction",
            xytext=(0, 19),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            fontweight="bold",
        )
        # The last method may be missing here: the axis is then below the last one that is drawn.
        last = max(row for row, key in enumerate(keys) if key in each["shares"])
        column[last].tick_params(labelbottom=True)
        column[last].set_xlabel("Confidence, %")
    axes = rows[0][0]
    handles = [
        axes.fill_between([], [], color=TEXT_COLOUR, alpha=0.5, linewidth=0, label="test images"),
        *axes.plot([], [], color=TEXT_COLOUR, linewidth=1.2, label="the same, scaled"),
        *axes.plot([], [], linestyle="none", label="height: the square root of the share of points"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def draw_histogram(axes: Axes, key: str, each: dict[str, Any]) -> None:
    """Draw one method's histograms. By square roots, few points are visible beside a bin of nearly all."""
    shares, low = each["shares"][key], 100 * each["low"]
    width = (100 - low) / len(shares["inside"])
    edges = [low + width * b for b in range(len(shares["inside"]) + 1)]
    inside, far = ([share**0.5 for share in shares[name]] for name in ("inside", "far"))
    axes.stairs(inside, edges, fill=True, color=COLOURS[key], alpha=0.5)
    axes.stairs(far, edges, color=TEXT_COLOUR, linewidth=1.2, clip_on=False)
    axes.set(xlim=(low, 100), ylim=(0, 1), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.set_title(each["methods"][key]["title"], loc="left", pad=2)
    axes.set_title(f"AUROC {shares['auroc']:.1f}%", loc="right", pad=2, fontsize=8.5)
