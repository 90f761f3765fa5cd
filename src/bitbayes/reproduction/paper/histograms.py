"""Histograms of confidence: the test set against itself scaled by δ, binary and multi-class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bitbayes.metrics import auroc
from bitbayes.reproduction.paper.methods import images_of
from bitbayes.reproduction.paper.pictures import COLOURS, panels, styled
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import Study, choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 40
DELTAS = {"multi-class": 2000, "binary": 100}


def measure(session: Session) -> dict[str, Any]:
    studies = {"multi-class": session.study("plain"), "binary": session.binary}
    return {kind: counts(study, DELTAS[kind]) for kind, study in studies.items()}


def counts(study: Study, delta: int) -> dict[str, Any]:
    """Shares of the points in each bin of confidence, in the first trial."""
    _, rows = study.split(0)
    near, far = study.test[rows], study.network.see(delta * images_of(study.problem.test_images[rows]))
    low = 1 / max(2, study.problem.classes)
    found = {}
    for key in study.methods:
        inside, outside = (study.predict(key, seen, 0) for seen in (near, far))
        shares = [
            torch.histc(probs.amax(1).double().cpu(), BINS, low, 1).div(len(probs)).tolist()
            for probs in (inside, outside)
        ]
        found[key] = {"inside": shares[0], "far": shares[1], "auroc": 100 * auroc(inside, outside)}
    return {
        "problem": study.problem.title,
        "delta": delta,
        "low": low,
        **study.about(),
        "shares": found,
    }


def show(values: dict[str, Any], report: Report) -> None:
    rows = []
    for kind in DELTAS:
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
    chosen = [f"{kind.capitalize()}. {text}" for kind in DELTAS for text in choices(values[kind])]
    report.table("Confidence of test images and of the same images scaled", header, rows, note, *chosen)
    report.picture(lambda: picture(values))


@styled
def picture(values: dict[str, Any]) -> Figure:
    """Filled: the test set. Outline: the same images × δ."""
    columns = max(len(values[kind]["shares"]) for kind in DELTAS)
    figure, axes = panels(2, columns, 2.1, 2.0, sharey=True)
    for row, kind in zip(axes, DELTAS, strict=True):
        each = values[kind]
        for panel in row[len(each["shares"]) :]:
            panel.set_axis_off()
        for panel, (key, shares) in zip(row, each["shares"].items(), strict=False):
            width = (1 - each["low"]) / BINS
            edges = [each["low"] + width * b for b in range(BINS + 1)]
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
