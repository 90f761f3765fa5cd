"""Histograms of confidence: test images, and the same images times δ, binary and multi-class."""

from typing import Any

import torch
from matplotlib.figure import Figure

from bitbayes.metrics import auroc
from bitbayes.reproduction.data import scale_pixels
from bitbayes.reproduction.paper.pictures import COLOURS, make_panels, styled
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import Study, choice_notes

HISTOGRAM_BINS = 40
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
    """Draw the test images' histogram filled, and that of the same images times δ as an outline."""
    columns = max(len(values[kind]["shares"]) for kind in DELTA_BY_KIND)
    figure, axes = make_panels(2, columns, 2.1, 2.0, sharey=True)
    for row, kind in zip(axes, DELTA_BY_KIND, strict=True):
        each = values[kind]
        for panel in row[len(each["shares"]) :]:
            panel.set_axis_off()
        for panel, (key, shares) in zip(row, each["shares"].items(), strict=False):
            width = (1 - each["low"]) / HISTOGRAM_BINS
            edges = [each["low"] + width * b for b in range(HISTOGRAM_BINS + 1)]
            panel.stairs(shares["inside"], edges, fill=True, color=COLOURS[key], alpha=0.45)
            panel.stairs(shares["far"], edges, color="#333333", linewidth=1.2)
            panel.set(title=each["methods"][key]["title"], xlim=(each["low"], 1), ylim=(0, 1))
        row[0].set_ylabel(f"{kind}\nShare of points")
    for panel in axes[0] + axes[1]:
        panel.set_xlabel("Confidence")
    axes[0][0].fill_between([], [], color="#8a8a8a", alpha=0.45, label="test images")
    axes[0][0].plot([], [], color="#333333", label="the same, scaled (multi-class × 2000, binary × 100)")
    figure.legend(loc="outside lower center", ncols=2)
    return figure
