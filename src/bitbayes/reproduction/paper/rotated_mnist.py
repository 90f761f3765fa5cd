"""Brier score against the angle by which test images are rotated, 0 to 180 in steps of 15 degrees."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from bitbayes.metrics import brier
from bitbayes.outliers import rotate
from bitbayes.progress import track
from bitbayes.reproduction.paper.curves import band, paper_line
from bitbayes.reproduction.paper.methods import images_of
from bitbayes.reproduction.paper.numbers import printed
from bitbayes.reproduction.paper.pictures import panels, styled
from bitbayes.reproduction.paper.report import Report, mean_std
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ANGLES = range(0, 181, 15)


def measure(session: Session) -> dict[str, Any]:
    study = session.study("plain")
    scores: dict[str, list[list[float]]] = {key: [] for key in study.methods}
    for angle in track(ANGLES, "rotating", study.progress):
        seen = study.network.see(rotate(images_of(study.problem.test_images), angle))
        for key in study.methods:
            trials = []
            for trial in range(study.trials):
                _, rows = study.split(trial)
                probabilities = study.predict(key, seen[rows], trial)
                trials.append(brier(probabilities, study.problem.test_labels[rows]))
            scores[key].append(trials)
    return {
        "problem": study.problem.title,
        "angles": list(ANGLES),
        **study.about(),
        "brier": scores,
    }


def show(values: dict[str, Any], report: Report) -> None:
    rows = []
    for key, curve in values["brier"].items():
        method = values["methods"][key]
        paper = dict(printed("rotated-mnist").get(method["paper"], []))
        for angle, trials in zip(values["angles"], curve, strict=True):
            theirs = f"{paper[angle]:.3f}" if angle in paper else "–"
            rows.append((method["title"], str(angle), mean_std(trials, 3), theirs))
    header = ("Method", "Angle", "Brier score", "Paper's")
    report.table(f"Rotated images: {values['problem']}", header, rows, *choices(values))
    report.picture(lambda: picture(values))


@styled
def picture(values: dict[str, Any]) -> Figure:
    """Ours in full lines, the paper's dashed; lower is better."""
    figure, ((axes,),) = panels(1, 1, 5.6, 3.6)
    for key, curve in values["brier"].items():
        method = values["methods"][key]
        band(
            axes, key, values["angles"], [statistics.fmean(trials) for trials in curve], None, method["title"]
        )
        paper_line(axes, key, printed("rotated-mnist").get(method["paper"]))
    axes.set(xlabel="Rotation, degrees", ylabel="Brier score", xticks=values["angles"][::2], ylim=(0, None))
    axes.plot([], [], color="#333333", linestyle="--", label="dashed: the paper's")
    axes.legend(loc="lower right", fontsize=8)
    return figure
