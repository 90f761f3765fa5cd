"""The style of all pictures: their width, their fonts, and a colour and a marker for each method."""

import math
import textwrap
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bitbayes.palette import METHODS

# In inches. A page of GitHub shows a picture 900 px wide, and 96 px of a screen count as an inch, so that the
# sizes of letters below are those on the screen.
PAGE_WIDTH = 900 / 96
LETTER_WIDTH = 0.075  # of a title
TEXT_COLOUR, GRID_COLOUR, BACKGROUND_CURVE = "#333333", "#e4e4e4", "#dcdcdc"
WITHDRAWN = "#A6A6A6"
# The methods that other pages show too have the colours and markers of `bitbayes.palette`. Detectors share
# that of the energy, and differ by their markers. All colours but the withdrawn differ by 10 or more in
# CIELAB, also with simulated colour blindness.
PALETTE = {
    "plain": METHODS["plain"],
    "temperature": METHODS["temperature"],
    "default": METHODS["bitbayes"],
    "ours": METHODS["paper"],
    "energy": METHODS["energy"],
}
DETECTOR = PALETTE["energy"].light
COLOURS = {key: style.light for key, style in PALETTE.items()} | {
    "default-all": "#56B4E9",
    "llla": "#d94f3d",
    "llla-code": "#f2b8b0",
    "llla-code-curvature": "#8a1f11",
    "dla": "#00a0a8",
    "dla-linear": "#b8d85a",
    "kfla": "#1A1A1A",
    "kfla-linear": "#4b2a96",
    "dkl": "#d8a400",
    "dkl-batch": "#e6d3a8",
    **dict.fromkeys(("max-logit", "gen", "mahalanobis", "relative-mahalanobis", "knn", "vim"), DETECTOR),
    **dict.fromkeys(("ours-mc", "ours-residual", "ours-plus-residual"), WITHDRAWN),
}
MARKERS = {key: style.marker for key, style in PALETTE.items()} | {
    "default-all": "p",
    "llla": "v",
    "llla-code": "3",
    "llla-code-curvature": "4",
    "dla": "<",
    "dla-linear": ">",
    "kfla": "P",
    "kfla-linear": "X",
    "dkl": "H",
    "dkl-batch": "h",
    "max-logit": "d",
    "gen": "8",
    "mahalanobis": "x",
    "relative-mahalanobis": "2",
    "knn": "+",
    "vim": "1",
    **dict.fromkeys(("ours-mc", "ours-residual", "ours-plus-residual"), "."),
}
# Their rows stand out: they are what a reader of these pictures looks for.
BITBAYES = ("default", "default-all")

# A decorator of functions that draw.
styled = matplotlib.rc_context(
    {
        "font.size": 9,
        "axes.titlesize": 9,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 9,
        "text.color": TEXT_COLOUR,
        "axes.labelcolor": TEXT_COLOUR,
        "axes.edgecolor": "#8a8a8a",
        "xtick.color": TEXT_COLOUR,
        "ytick.color": TEXT_COLOUR,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "legend.frameon": False,
    }
)


def marker_style(key: str) -> dict[str, Any]:
    """Return the style of a method's markers, without a line between them."""
    return {
        "marker": MARKERS[key],
        "color": COLOURS[key],
        "linestyle": "none",
        "markersize": 6,
        "markeredgewidth": 1.4,
        "clip_on": False,
    }


def make_panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of rows × columns panels, as wide as the page. Each row is `height` inches high."""
    figure = Figure(figsize=(PAGE_WIDTH, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [list(row) for row in axes]


def wrap_title(title: str, width: float) -> str:
    """Break a title into lines that fit into `width` inches.

    >>> wrap_title("Last layer, paper's objective", 1.6)
    "Last layer, paper's\\nobjective"
    """
    return textwrap.fill(title, max(8, int(width / LETTER_WIDTH)))


def choose_columns(panels: int, most: int = 5) -> int:
    """Return the number of columns that fills the fewest rows of at most `most` panels evenly.

    >>> [choose_columns(panels) for panels in (1, 5, 6, 7, 9, 11)]
    [1, 5, 3, 4, 5, 4]
    """
    return math.ceil(panels / math.ceil(panels / most))
