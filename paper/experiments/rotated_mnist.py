"""Brier score on rotated test images, against the angle."""

import math
import statistics
from typing import Any

from matplotlib.figure import Figure

from bitbayes.metrics import brier
from bitbayes.outliers import rotate
from bitbayes.toys import scale_pixels
from paper.drawing.curves import add_legend, plot_band, plot_paper_curve
from paper.drawing.pictures import (
    BACKGROUND_CURVE,
    PAGE_WIDTH,
    choose_columns,
    make_panels,
    styled,
    wrap_title,
)
from paper.numbers import paper_numbers
from paper.progress import track
from paper.report import Report, format_mean_std
from paper.session import Session
from paper.study import choice_notes

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
    """Draw a panel for each method, with its worst score, and pale curves of all others. Lower is better."""
    means = {key: [statistics.fmean(trials) for trials in curve] for key, curve in values["brier"].items()}
    columns = choose_columns(len(means))
    rows = math.ceil(len(means) / columns)
    figure, axes = make_panels(rows, columns, 2.2, sharex=True, sharey=True)
    panels = [panel for row in axes for panel in row]
    for panel in panels[len(means) :]:
        panel.set_axis_off()
    angles = values["angles"]
    for panel, (key, curve) in zip(panels, means.items(), strict=False):
        method = values["methods"][key]
        for other in means.values():
            panel.plot(angles, other, color=BACKGROUND_CURVE, linewidth=0.9)
        plot_band(panel, key, angles, curve)
        plot_paper_curve(panel, paper_numbers("rotated-mnist").get(method["paper"]))
        panel.set_title(wrap_title(method["title"], PAGE_WIDTH / columns - 0.3))
        panel.text(0.97, 0.04, f"worst {max(curve):.2f}", transform=panel.transAxes, ha="right")
        panel.tick_params(labelbottom=True)
        panel.set(xticks=[0, 90, 180], yticks=[0, 0.5, 1, 1.5], ylim=(0, None), xlabel="Rotation, degrees")
    for row in axes:
        row[0].set_ylabel("Brier score")
    add_legend(figure, panels[0], None, band=False)
    return figure
