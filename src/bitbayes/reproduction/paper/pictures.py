"""What all pictures share: colours that all kinds of colour vision tell apart, one for each method.

matplotlib is imported only where something is drawn: numbers can be made on a machine that lacks it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

# Okabe and Ito's colours.
COLOURS = {
    "plain": "#D55E00",
    "temperature": "#009E73",
    "llla": "#0072B2",
    "dla": "#E69F00",
    "kfla": "#CC79A7",
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
    "ours": "*",
    "ours-mc": "P",
    "ours-residual": "X",
    "ours-plus-residual": "h",
    "dkl-batch": "D",
    "dkl": "P",
}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


HOLLOW = {"color": "#333333", "markerfacecolor": "none"}


def marker_style(key: str) -> dict[str, Any]:
    """A method's marker, without a line."""
    return {"marker": MARKERS[key], "color": COLOURS[key], "linestyle": "none", "markersize": 6}


def panels(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of rows × columns panels, each `width` × `height` inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [list(row) for row in axes]


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draws in the style above."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn
