"""OpenOOD's near and far outliers over several trainings, with the distance to its published best.

It measures nothing itself: the numbers are those of `results/shift`.
"""

from __future__ import annotations

import statistics
from typing import Any

from matplotlib.figure import Figure

from bitbayes.baselines.detectors import DETECTORS
from bitbayes.errors import FileError
from paper.drawing.dots import Block, Cell, Panel, draw_blocks
from paper.drawing.pictures import styled
from paper.experiments.openood import NEAR, best_published, published_table
from paper.experiments.shift import TITLES
from paper.report import Report, numbers_of_most_epochs
from paper.session import Session
from paper.tables import Column, measure_table

FAR = "SVHN"  # LSUN is none of OpenOOD's sets
METHODS = ("default", "ensemble", "dropout", "swag", "default-all")
KINDS = ("near", "far")
MEASURES = (*KINDS, "accuracy")


def measure(session: Session) -> dict[str, Any]:
    """AUROC and accuracy of each method and detector, in %, for each training."""
    folder = session.options.output / "shift"
    found = {name: numbers_of_most_epochs(folder, name) for name in NEAR}
    sets = {name: _rates(values, NEAR[name][0]) for name, values in found.items() if values is not None}
    if not sets:
        raise FileError(
            f"no numbers of {' or '.join(NEAR)} in {folder}: make them first, with `python -m paper shift`"
        )
    return {"sets": sets}


def _rates(values: dict[str, Any], near: str) -> dict[str, Any]:
    sets = {"near": near, "far": FAR}

    def accuracy(key: str) -> list[float]:
        return [100 * one["test"]["accuracy"] for one in values["methods"][key]]

    rows = {}
    for key in METHODS:
        runs = values["methods"].get(key, [])
        if runs:
            told = {kind: [100 * one["sets"][name]["auroc"] for one in runs] for kind, name in sets.items()}
            rows[key] = {"title": TITLES[key], **told, "accuracy": accuracy(key)}
    for key, found in values["detectors"].items():
        told = {kind: [100 * each for each in found[name]] for kind, name in sets.items()}
        title = f"Detector: {DETECTORS[key].title}"
        rows[key] = {"title": title, **told, "accuracy": accuracy("plain")}
    return {"problem": values["problem"], "made_by": values["about"]["command"], **sets, "rows": rows}


def show(values: dict[str, Any], report: Report) -> None:
    lines = [
        "bitbayes tells strangers by `bayes.score`; ensemble, MC dropout and SWAG by the entropy of their "
        "mean prediction, negated. Mean ± standard deviation over trainings, the best in bold. The ensemble "
        "averages all trainings. MC dropout, SWAG and all layers, where they were run, have one training and "
        "the first 2,000 test images.",
        "",
        "**Incomplete**: the near sets of OpenOOD v1.5 also have Tiny ImageNet, and its far sets MNIST, "
        "Textures and Places365. So the distance to the published best is shown for near sets alone. The "
        "published networks are other ResNet-18s: the distance shows no more than the range.",
    ]
    for name, found in values["sets"].items():
        lines += ["", f"## {found['problem']}", "", *_table(name, found), "", *published_table(name), ""]
        lines += [f"Made from `{found['made_by']}`."]
    report.write_page("OpenOOD's near and far outliers, over trainings", *lines)
    report.write_csv(
        ("trained_on", "method", "training", "near_auroc", "far_auroc", "accuracy"),
        [
            (name, key, number, *numbers)
            for name, found in values["sets"].items()
            for key, each in found["rows"].items()
            for number, numbers in enumerate(zip(*(each[what] for what in MEASURES), strict=True))
        ],
    )
    report.write_picture(lambda: draw(values))


def _table(name: str, found: dict[str, Any]) -> list[str]:
    rows = {each["title"]: each for each in found["rows"].values()}
    best, _ = best_published(name)
    near, far = ({title: each[kind] for title, each in rows.items()} for kind in KINDS)
    columns = [
        Column(f"Near, {found['near']}: AUROC, %", near, 1, "max"),
        Column(f"from {best:.1f}", {title: [statistics.fmean(each) - best] for title, each in near.items()}),
        Column(f"Far, {found['far']}: AUROC, %", far, 1, "max"),
        Column("Accuracy, %", {title: each["accuracy"] for title, each in rows.items()}, 2),
    ]
    return measure_table(sorted(rows, key=lambda title: -statistics.fmean(rows[title]["near"])), columns)


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw the AUROC of all that needs one network. Dotted: the best published."""
    shown = ("default", "default-all", *DETECTORS)
    panels = []
    for name, found in values["sets"].items():
        for kind in KINDS:
            cells = {key: Cell(found["rows"][key][kind]) for key in shown if key in found["rows"]}
            best = best_published(name)[0] if kind == "near" else None
            panels.append(Panel(f"{found['problem']}, {kind}: {found[kind]}", cells, best=max, dotted=best))
    titles = {key: each["title"] for found in values["sets"].values() for key, each in found["rows"].items()}
    return draw_blocks(titles, [Block("AUROC, %", panels)], "the best published, other networks")
