"""Figure 5: confidence on test images multiplied by δ, binary and multi-class."""

from typing import Any

import torch
from matplotlib.figure import Figure

from bitbayes.progress import track
from bitbayes.reproduction.data import scale_pixels
from bitbayes.reproduction.paper.curves import plot_band, plot_paper_curve
from bitbayes.reproduction.paper.numbers import paper_numbers
from bitbayes.reproduction.paper.pictures import make_panels, styled
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import Study, choice_notes

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
    """Draw a row for each problem and a panel for each method: mean ± 3 std. Dashed lines are the paper's."""
    kinds = _kinds(values)
    columns = max(len(each["confidence_percent"]) for _, each in kinds)
    figure, axes = make_panels(2, columns, 2.2, 2.0, sharex=True, sharey=True)
    for row, (kind, each) in zip(axes, kinds, strict=True):
        for panel, (key, curve) in zip(row, each["confidence_percent"].items(), strict=False):
            plot_band(panel, key, each["delta"], curve["mean"], curve["std"], each["methods"][key]["title"])
            plot_paper_curve(panel, key, _paper_curve(kind, each, key), 100)
            panel.axhline(100 / each["classes"], color="#333333", linestyle=":", linewidth=1)
            panel.set(title=each["methods"][key]["title"], ylim=(0, 104))
        row[0].set_ylabel(f"{kind}\nConfidence, %")
    for panel in axes[-1]:
        panel.set_xlabel("δ")
    first = axes[0][0]
    keys = [
        first.fill_between([], [], color="#333333", alpha=0.15, label="± 3 std over test points"),
        *first.plot([], [], color="#333333", linestyle="--", linewidth=1.1, label="the paper's mean"),
        *first.plot([], [], color="#333333", linestyle=":", linewidth=1, label="1 / number of classes"),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return figure
