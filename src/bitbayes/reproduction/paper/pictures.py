"""The style of all pictures, with a colour and a marker for each method."""

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with colour blindness can distinguish.
COLOURS = {
    "plain": "#D55E00",
    "temperature": "#009E73",
    "llla": "#0072B2",
    "dla": "#E69F00",
    "kfla": "#CC79A7",
    "default": "#7B1FA2",
    "default-all": "#CC79A7",
    "energy": "#E69F00",
    "ours": "#000000",
    "ours-mc": "#56B4E9",
    "ours-residual": "#8A8A8A",
    "ours-plus-residual": "#B8A800",
    "dkl-batch": "#CC79A7",
    "dkl": "#E69F00",
}
MARKERS = {
    "plain": "o",
    "temperature": "^",
    "llla": "s",
    "dla": "v",
    "kfla": "D",
    "default": "p",
    "default-all": "D",
    "energy": "v",
    "ours": "*",
    "ours-mc": "P",
    "ours-residual": "X",
    "ours-plus-residual": "h",
    "dkl-batch": "D",
    "dkl": "P",
}
for _key in ("dla-linear", "kfla-linear", "max-logit", "gen", "mahalanobis", "knn", "vim"):
    COLOURS.setdefault(_key, "#646464")
    MARKERS.setdefault(_key, "o")
HOLLOW = {"color": "#333333", "markerfacecolor": "none"}

# A decorator of functions that draw.
styled = matplotlib.rc_context(
    {
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
)


def marker_style(key: str) -> dict[str, Any]:
    """Return the style of a method's markers, without a line between them."""
    return {"marker": MARKERS[key], "color": COLOURS[key], "linestyle": "none", "markersize": 6}


def label_rows(left: Axes, right: Axes, names: list[str]) -> None:
    """Name the rows of two panels of percentages, the first at the top, and draw lines between them."""
    left.set(yticks=range(len(names), 0, -1), yticklabels=names)
    for axes in (left, right):
        axes.set(xlim=(0, 101))
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        for row in range(1, len(names)):
            axes.axhline(row + 0.5, color="#bbbbbb", linewidth=0.6)


def make_panels(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of rows × columns panels, each `width` × `height` inches."""
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [list(row) for row in axes]
