"""Figure 5 and its companion: confidence on test images multiplied by δ, binary and multi-class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bitbayes.progress import track
from bitbayes.reproduction.paper.curves import band, paper_line
from bitbayes.reproduction.paper.methods import images_of
from bitbayes.reproduction.paper.numbers import printed
from bitbayes.reproduction.paper.pictures import panels, styled
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import Study, choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DELTAS = range(21)
# Networks sampled anew at each of 21 scales would take most of the time and show nothing new.
METHODS = ("plain", "temperature", "llla", "ours", "ours-residual")


def measure(session: Session) -> dict[str, Any]:
    studies = {"multi-class": session.study("plain"), "binary": session.binary}
    return {name: curves(study) for name, study in studies.items()}


def curves(study: Study) -> dict[str, Any]:
    """Of each method: mean and standard deviation over the test points at each δ, averaged over trials."""
    keys = [key for key in METHODS if key in study.methods]
    found: dict[str, dict[str, list[float]]] = {key: {"mean": [], "std": []} for key in keys}
    for delta in track(DELTAS, f"scaling ({study.problem.name})", study.progress):
        seen = study.network.see(delta * images_of(study.problem.test_images))
        for key in keys:
            moments = []
            for trial in range(study.trials):
                _, rows = study.split(trial)
                confidence = study.predict(key, seen[rows], trial).amax(1).double()
                moments.append(torch.stack([confidence.mean(), confidence.std()]).cpu())
            mean, std = torch.stack(moments).mean(0).tolist()
            found[key]["mean"].append(100 * mean)
            found[key]["std"].append(100 * std)
    return {
        "problem": study.problem.title,
        "paper_problem": study.problem.paper.removeprefix("Binary-"),
        "classes": max(2, study.problem.classes),
        **study.about(*keys),
        "delta": list(DELTAS),
        "confidence_percent": found,
    }


def show(values: dict[str, Any], report: Report) -> None:
    rows = []
    for kind, each in _kinds(values):
        for key, curve in each["confidence_percent"].items():
            paper = dict(_paper(kind, each, key))
            for delta in (0, 1, 2, 5, 10, 20):
                at = each["delta"].index(delta)
                theirs = f"{100 * paper[delta]:.1f}" if delta in paper else "–"
                ours = f"{curve['mean'][at]:.1f} ± {curve['std'][at]:.1f}"
                rows.append((kind, each["methods"][key]["title"], str(delta), ours, theirs))
    header = ("Problem", "Method", "δ", "Confidence, %: mean ± std over test points", "Paper's mean")
    chosen = [f"{kind.capitalize()}. {text}" for kind, each in _kinds(values) for text in choices(each)]
    report.table("Confidence on test images multiplied by δ", header, rows, *chosen)
    report.picture(lambda: picture(values))


def _kinds(values: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(kind, values[kind]) for kind in ("multi-class", "binary")]


def _paper(kind: str, each: dict[str, Any], key: str) -> list[tuple[float, float]]:
    """The paper's curve: [δ, confidence]; empty where it has none."""
    figure = "confidence-vs-scale" + ("-binary" if kind == "binary" else "")
    curves = printed(figure).get(each["methods"][key]["paper"], {})
    return [(x, y) for x, y in curves.get(each["paper_problem"], [])]


@styled
def picture(values: dict[str, Any]) -> Figure:
    """A row for each problem, a panel for each method: mean ± 3 std; dashed: the paper's mean."""
    kinds = _kinds(values)
    columns = max(len(each["confidence_percent"]) for _, each in kinds)
    figure, axes = panels(2, columns, 2.2, 2.0, sharex=True, sharey=True)
    for row, (kind, each) in zip(axes, kinds, strict=True):
        for panel, (key, curve) in zip(row, each["confidence_percent"].items(), strict=False):
            band(panel, key, each["delta"], curve["mean"], curve["std"], each["methods"][key]["title"])
            paper_line(panel, key, _paper(kind, each, key), 100)
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
