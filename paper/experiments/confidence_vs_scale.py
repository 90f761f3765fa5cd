"""Figure 5: confidence on test images multiplied by δ, binary and multi-class."""

from typing import Any

import torch
from matplotlib.figure import Figure

from bitbayes.toys import scale_pixels
from paper.drawing.curves import (
    DOTTED_LINE,
    add_legend,
    label_end,
    plot_band,
    plot_paper_curve,
)
from paper.drawing.pictures import PAGE_WIDTH, choose_columns, make_panels, styled, wrap_title
from paper.numbers import paper_numbers
from paper.progress import track
from paper.report import Report
from paper.session import Session
from paper.study import Study, choice_notes

# Posteriors over all layers are left out: they would take most of the time and show nothing new.
DELTAS_SHOWN = (0, 1, 2, 5, 10, 20, 30, 100, 200)  # in the table
METHODS_SHOWN = ("plain", "temperature", "llla", "ours", "default")


def measure(session: Session) -> dict[str, Any]:
    studies = {"multi-class": session.study("plain"), "binary": session.binary_study}
    return {name: measure_curves(study) for name, study in studies.items()}


def measure_curves(study: Study) -> dict[str, Any]:
    """Return mean and standard deviation over the test points at each δ, averaged over trials."""
    keys = [key for key in METHODS_SHOWN if key in study.methods]
    found: dict[str, dict[str, list[float]]] = {key: {"mean": [], "std": []} for key in keys}
    deltas = study.problem.deltas
    for delta in track(deltas, f"scaling ({study.problem.name})", study.progress):
        points = study.network.extract_features(delta * scale_pixels(study.problem.test.images))
        for key in keys:
            moments = []
            for trial in range(study.trials):
                _, rows = study.split(trial)
                probs = study.rate(key, points, trial).rows(rows).probs
                assert probs is not None
                confidence = probs.amax(1).double()
                moments.append(torch.stack([confidence.mean(), confidence.std()]).cpu())
            mean, std = torch.stack(moments).mean(0).tolist()
            found[key]["mean"].append(100 * mean)
            found[key]["std"].append(100 * std)
    return {
        "problem": study.problem.title,
        "paper_problem": study.problem.paper_name.removeprefix("Binary-"),
        "classes": max(2, study.problem.classes),
        **study.describe(*keys),
        "delta": list(deltas),
        "confidence_percent": found,
    }


def show(values: dict[str, Any], report: Report) -> None:
    rows = []
    for kind, each in _kinds(values):
        for key, curve in each["confidence_percent"].items():
            paper = dict(_paper_curve(kind, each, key))
            for at, delta in enumerate(each["delta"]):
                if delta not in DELTAS_SHOWN:
                    continue
                theirs = f"{100 * paper[delta]:.1f}" if delta in paper else "–"
                ours = f"{curve['mean'][at]:.1f} ± {curve['std'][at]:.1f}"
                rows.append((kind, each["methods"][key]["title"], str(delta), ours, theirs))
    header = ("Problem", "Method", "δ", "Confidence, %: mean ± std over test points", "Paper's mean")
    chosen = [f"{kind.capitalize()}. {text}" for kind, each in _kinds(values) for text in choice_notes(each)]
    report.write_table("Confidence on test images multiplied by δ", header, rows, *chosen)
    report.write_picture(lambda: draw(values))


def _kinds(values: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(kind, values[kind]) for kind in ("multi-class", "binary")]


def _paper_curve(kind: str, each: dict[str, Any], key: str) -> list[tuple[float, float]]:
    """Return the paper's curve, pairs of δ and confidence. It is empty if there is none."""
    figure = "confidence-vs-scale" + ("-binary" if kind == "binary" else "")
    curves = paper_numbers(figure).get(each["methods"][key]["paper"], {})
    return [(x, y) for x, y in curves.get(each["paper_problem"], [])]


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw a panel for each problem and method: mean ± std, and the number at the largest δ."""
    kinds = _kinds(values)
    columns = choose_columns(max(len(each["confidence_percent"]) for _, each in kinds))
    lines = [(kind, each, keys) for kind, each in kinds for keys in _split_evenly(each, columns)]
    figure, axes = make_panels(len(lines), columns, 2.05, sharex=True, sharey="row")
    for row, (kind, each, keys) in zip(axes, lines, strict=True):
        for panel in row[len(keys) :]:
            panel.set_axis_off()
        chance = 100 / each["classes"]
        for panel, key in zip(row, keys, strict=False):
            curve = each["confidence_percent"][key]
            panel.axhline(chance, **DOTTED_LINE)
            plot_band(panel, key, each["delta"], curve["mean"], curve["std"], (chance, 100))
            plot_paper_curve(panel, _paper_curve(kind, each, key), 100)
            label_end(panel, key, each["delta"], curve["mean"], f"{curve['mean'][-1]:.0f}")
            panel.set_title(wrap_title(each["methods"][key]["title"], PAGE_WIDTH / columns - 0.3))
            panel.tick_params(labelbottom=True)
            panel.set(xlabel="δ", ylim=(chance - 4, 104))
        row[0].set_ylabel(f"{kind.capitalize()}:\nconfidence, %")
    add_legend(figure, axes[0][0], "1 / number of classes")
    return figure


def _split_evenly(each: dict[str, Any], columns: int) -> list[list[str]]:
    """Return the methods of each row of panels."""
    keys = list(each["confidence_percent"])
    return [keys[start : start + columns] for start in range(0, len(keys), columns)]
