"""OpenOOD's near and far outliers, as far as the data reach, with its published figures beside ours."""

import statistics
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from bitbayes.errors import ArgumentError
from paper.drawing.dots import Best, Block, Cell, Panel, draw_blocks
from paper.drawing.pictures import styled
from paper.experiments import ood
from paper.report import Report, format_mean_std, markdown_table
from paper.session import Session
from paper.study import choice_notes

# Which of a problem's sets of outliers are near, and which are far.
NEAR = {"cifar10": ("CIFAR-100",), "cifar100": ("CIFAR-10",)}
FAR = ("SVHN", "LSUN (packed scenes)")
# AUROC in %, near and far, of OpenOOD v1.5's result files: post hoc, ResNet-18, no outliers in training.
PUBLISHED: dict[str, dict[str, tuple[float | None, float | None]]] = {
    "cifar10": {
        "CombOOD": (91.1, 94.7),
        "NAC": (90.9, 94.6),
        "KNN": (90.6, 93.0),
        "WeiPer": (90.5, 93.1),
        "fDBD": (90.4, 93.2),
        "ViM": (88.7, 93.5),
        "MSP": (88.0, 90.7),
    },
    "cifar100": {
        "WeiPer": (81.4, 79.0),
        "GEN": (81.3, 79.7),
        "fDBD": (81.3, 79.9),
        "MSP": (80.3, 77.8),
        "KNN": (80.2, 82.4),
        "RMDS": (None, 82.9),
        "NAC": (None, 87.0),
    },
}
HEADER = ("Method", "Near: AUROC, %", "Near: FPR95, %", "Far: AUROC, %", "Far: FPR95, %")
PUBLISHED_HEADER = ("Published, OpenOOD v1.5", "Near: AUROC, %", "Far: AUROC, %")
NOTE = (
    "Where there are several sets, the mean over them. OpenOOD has more sets: near also Tiny ImageNet, far "
    "MNIST, SVHN, Textures and Places365. Its networks are other ResNet-18s. So its figures show the range, "
    "and no more."
)


class Row(NamedTuple):
    """A method's values of each trial."""

    key: str
    title: str
    near_auroc: list[float]
    near_fpr95: list[float]
    far_auroc: list[float]
    far_fpr95: list[float]


def measure(session: Session) -> dict[str, Any]:
    name = session.options.train
    if name not in NEAR:
        raise ArgumentError(f"train={name!r}: there are near outliers for {' and '.join(NEAR)} alone")
    study = session.study("plain")
    found = ood.measure(study, ood.image_sets(study))
    return found | {"train": name, "near": list(NEAR[name]), "far": list(FAR)}


def show(values: dict[str, Any], report: Report) -> None:
    report.write_table(
        f"OpenOOD's near and far outliers: {values['problem']}",
        HEADER,
        [(row.title, *map(format_mean_std, row[2:])) for row in rows_in_order(values)],
        f"Near: {', '.join(values['near'])}. Far: {', '.join(values['far'])}. In the order of near AUROC.",
        "\n".join(published_table(values["train"])),
        NOTE,
        ood.SCORES_NOTE,
        *choice_notes(values),
    )
    report.write_picture(lambda: draw(values))


def published_table(name: str) -> list[str]:
    """Return the lines of the table of published figures."""
    rows = [
        (title, *("–" if auroc is None else f"{auroc:.1f}" for auroc in pair))
        for title, pair in PUBLISHED[name].items()
    ]
    return markdown_table(PUBLISHED_HEADER, rows)


def best_published(name: str) -> tuple[float, float]:
    """Return the best published AUROC, near and far."""
    near, far = zip(*PUBLISHED[name].values(), strict=True)
    return max(filter(None, near)), max(filter(None, far))


def rows_in_order(values: dict[str, Any]) -> list[Row]:
    """Return the methods, the best near AUROC first."""

    def mean(key: str, kind: str, quantity: str) -> list[float]:
        sets = [values["scores_percent"][name][key][quantity] for name in values[kind]]
        return [statistics.fmean(trial) for trial in zip(*sets, strict=True)]

    rows = [
        Row(
            key,
            method["title"],
            *(mean(key, kind, each) for kind in ("near", "far") for each in ("auroc", "fpr95")),
        )
        for key, method in values["methods"].items()
        if key not in values["not_run"]
    ]
    return sorted(rows, key=lambda row: -statistics.fmean(row.near_auroc))


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw AUROC and FPR95, the best near AUROC at the top. Dotted: the best published AUROC."""
    rows = rows_in_order(values)
    near, far = best_published(values["train"])
    sets = {kind: ", ".join(values[kind]) for kind in ("near", "far")}

    def panel(title: str, field: str, best: Best, dotted: float | None = None) -> Panel:
        cells = {row.key: Cell(getattr(row, field)) for row in rows}
        return Panel(title, cells, best=best, dotted=dotted)

    panels = [
        panel("AUROC, %: near", "near_auroc", max, near),
        panel("FPR95, %: near", "near_fpr95", min),
        panel("AUROC, %: far", "far_auroc", max, far),
        panel("FPR95, %: far", "far_fpr95", min),
    ]
    heading = f"{values['problem']}. Near: {sets['near']}. Far: {sets['far']}."
    return draw_blocks(
        {row.key: row.title for row in rows}, [Block(heading, panels)], "the best published, other networks"
    )
