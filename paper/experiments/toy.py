"""Figures 1 and 4, with more methods: confidence in the plane, near the data and zoomed out."""

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from bitbayes.plots.toy_map import draw_confidence, draw_key, draw_points, grid_points, view_extent
from bitbayes.toys import TOY_PROBLEMS, Toy, train_toy
from paper.drawing.pictures import PAGE_WIDTH, make_panels, styled
from paper.report import Report
from paper.session import Session
from paper.study import choice_notes
from paper.toys import fit_methods

GRID_POINTS_PER_SIDE = 51
ZOOM = 8.0  # the width of the far view, in widths of the near view
VIEWS = ("near", "far")
KEY_SPACE, KEY_COLUMN = (
    0.085,
    0.01,
)  # of the width of the picture: for the colours' key, and for a class in it


def measure(session: Session) -> dict[str, Any]:
    return {"toys": {toy.name: map_confidence(toy, session) for toy in (make() for make in TOY_PROBLEMS)}}


def map_confidence(toy: Toy, session: Session) -> dict[str, Any]:
    """Return each method's confidence and class on a grid, near the data and zoomed out."""
    network = train_toy(toy, seed=session.options.seed, quick=session.options.quick)
    grids = {"near": make_grid(toy, 1.0), "far": make_grid(toy, ZOOM)}
    found: dict[str, Any] = {}
    for name, (predict, chosen) in fit_methods(toy, network).items():
        at_data = predict(toy.x)
        found[name] = {
            "chosen": chosen,
            "at_data": float(at_data.amax(1).mean()),
            "accuracy": float((at_data.argmax(1) == toy.y).double().mean()),
            "far_edge": float(predict(border_points(toy, ZOOM)).amax(1).mean()),
        }
        for view, (points, _) in grids.items():
            probabilities = predict(points)
            found[name][view] = {
                "per_mille": (1000 * probabilities.amax(1)).round().int().tolist(),
                "label": "".join(map(str, probabilities.argmax(1).tolist())),
            }
    return {
        "title": toy.title,
        "classes": max(2, toy.outputs),
        "points": toy.x.tolist(),
        "labels": toy.y.tolist(),
        "extents": {view: extent for view, (_, extent) in grids.items()},
        "maps": found,
    }


def describe(toy: dict[str, Any]) -> dict[str, Any]:
    """Return what the methods chose, in the form that `choice_notes` takes, with a single trial."""
    return {
        "methods": {name: {"title": name} for name in toy["maps"]},
        "chosen": [{name: found["chosen"] for name, found in toy["maps"].items()}],
        "not_run": {},
    }


def make_grid(toy: Toy, zoom: float) -> tuple[Tensor, tuple[float, float, float, float]]:
    """Return the grid points of a view, (51², 2), row by row from the bottom, and its extent."""
    extent = view_extent(toy.x, zoom)
    return grid_points(extent, GRID_POINTS_PER_SIDE), extent


def border_points(toy: Toy, zoom: float) -> Tensor:
    """Return the grid points on the border of a view."""
    points, _ = make_grid(toy, zoom)
    x, y = points.T
    on_border = (x == x.min()) | (x == x.max()) | (y == y.min()) | (y == y.max())
    return points[on_border]


def show(values: dict[str, Any], report: Report) -> None:
    rows = []
    for toy in values["toys"].values():
        for name, found in toy["maps"].items():
            plain = toy["maps"]["Plain"]["near"]["label"]
            kept = sum(a == b for a, b in zip(found["near"]["label"], plain, strict=True)) / len(plain)
            percent = [100 * found["at_data"], 100 * found["far_edge"], 100 * kept]
            rows.append((toy["title"], name, *(f"{value:.1f}" for value in percent)))
    header = (
        "Problem",
        "Method",
        "Confidence at the training points, %",
        "On the border of the zoomed-out view, %",
        "Grid points with the plain network's class, %",
    )
    chosen = [
        f"{toy['title']}. {text}" for toy in values["toys"].values() for text in choice_notes(describe(toy))
    ]
    report.write_table("Confidence in the plane", header, rows, *chosen)
    for name, toy in values["toys"].items():
        report.write_picture(lambda toy=toy: draw(toy), extra=name)  # type: ignore[misc]


@styled
def draw(toy: dict[str, Any]) -> Figure:
    """Draw a column for each method, near the data and zoomed out. Black lines are decision boundaries."""
    names, shape = list(toy["maps"]), (GRID_POINTS_PER_SIDE, GRID_POINTS_PER_SIDE)
    figure, axes = make_panels(2, len(names), 0.15 + (PAGE_WIDTH - 1.0) / len(names))
    points, labels = torch.tensor(toy["points"]), torch.tensor(toy["labels"])
    for row, view in zip(axes, VIEWS, strict=True):
        left, right, bottom, top = toy["extents"][view]
        for panel, name in zip(row, names, strict=True):
            found = toy["maps"][name][view]
            confidence = np.array(found["per_mille"]).reshape(shape) / 1000
            label = np.array([int(c) for c in found["label"]]).reshape(shape)
            draw_confidence(panel, confidence, label, (left, right, bottom, top), toy["classes"])
            few = len(points) < 200
            size, edge = ((8, 0.3) if few else (4, 0.1)) if view == "near" else (1, 0)
            draw_points(panel, points, labels, toy["classes"], size, edge)
            panel.set(xticks=[], yticks=[], xlim=(left, right), ylim=(bottom, top))
            if view == "near":
                panel.set_title(name)
        row[0].set_ylabel("near the data" if view == "near" else f"zoomed out, × {ZOOM:g}")
    width = KEY_COLUMN * toy["classes"]
    draw_key(figure.add_axes((1 - KEY_SPACE, 0.2, width, 0.6)), toy["classes"])
    figure.set_layout_engine("constrained", rect=(0, 0, 1 - KEY_SPACE - 0.03, 1))
    figure.suptitle(toy["title"], fontsize=10)
    return figure
