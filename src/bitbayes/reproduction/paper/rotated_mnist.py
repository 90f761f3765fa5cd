"""Brier score on rotated test images, against the angle."""

import statistics
from typing import Any

from matplotlib.figure import Figure

from bitbayes.metrics import brier
from bitbayes.outliers import rotate
from bitbayes.progress import track
from bitbayes.reproduction.data import scale_pixels
from bitbayes.reproduction.paper.curves import plot_band, plot_paper_curve
from bitbayes.reproduction.paper.numbers import paper_numbers
from bitbayes.reproduction.paper.pictures import make_panels, styled
from bitbayes.reproduction.paper.report import Report, format_mean_std
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import choice_notes

ANGLES_DEGREES = range(0, 181, 15)
METHODS_SHOWN = ("plain", "temperature", "llla", "dla", "kfla", "ours", "default")


def measure(session: Session) -> dict[str, Any]:
    study = session.study("plain")
    scores: dict[str, list[list[float]]] = {key: [] for key in METHODS_SHOWN if key in study.methods}
    for angle in track(ANGLES_DEGREES, "rotating", study.progress):
        points = study.network.extract_features(rotate(scale_pixels(study.problem.test.images), angle))
        for key, angles in scores.items():
            trials = []
            for trial in range(study.trials):
                _, rows = study.split(trial)
                probs = study.rate(key, points, trial).rows(rows).probs
                assert probs is not None
                trials.append(brier(probs, study.problem.test.labels[rows]))
            angles.append(trials)
    return {
        "problem": study.problem.title,
        "angles": list(ANGLES_DEGREES),
        **study.describe(*scores),
        "brier": scores,
    }


def show(values: dict[str, Any], report: Report) -> None:
    rows = []
    for key, curve in values["brier"].items():
        method = values["methods"][key]
        paper = dict(paper_numbers("rotated-mnist").get(method["paper"], []))
        for angle, trials in zip(values["angles"], curve, strict=True):
            theirs = f"{paper[angle]:.3f}" if angle in paper else "–"
            rows.append((method["title"], str(angle), format_mean_std(trials, 3), theirs))
    header = ("Method", "Angle", "Brier score", "Paper's")
    report.write_table(f"Rotated images: {values['problem']}", header, rows, *choice_notes(values))
    report.write_picture(lambda: draw(values))


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw our scores as solid lines and the paper's as dashed lines. Lower is better."""
    figure, ((axes,),) = make_panels(1, 1, 5.6, 3.6)
    for key, curve in values["brier"].items():
        method = values["methods"][key]
        plot_band(
            axes, key, values["angles"], [statistics.fmean(trials) for trials in curve], None, method["title"]
        )
        plot_paper_curve(axes, key, paper_numbers("rotated-mnist").get(method["paper"]))
    axes.set(xlabel="Rotation, degrees", ylabel="Brier score", xticks=values["angles"][::2], ylim=(0, None))
    axes.plot([], [], color="#333333", linestyle="--", label="dashed: the paper's")
    axes.legend(loc="lower right", fontsize=8)
    return figure
