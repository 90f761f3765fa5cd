"""Draw curves: ours with a band, and the paper's."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.drawing.pictures import COLOURS, TEXT_COLOUR

PAPER_LINE: dict[str, Any] = {"color": TEXT_COLOUR, "linestyle": (0, (4, 2)), "linewidth": 1.1}
DOTTED_LINE: dict[str, Any] = {"color": TEXT_COLOUR, "linestyle": ":", "linewidth": 1.1}
BAND_OPACITY = 0.18


def plot_band(
    axes: Axes,
    key: str,
    x: Sequence[float],
    mean: Sequence[float],
    std: Sequence[float] | None = None,
    limits: tuple[float, float] = (-float("inf"), float("inf")),
) -> None:
    """Draw a mean line in a band of ± 1 standard deviation, within `limits`. Without `std`: only the line."""
    if std is not None:
        low, high = (
            [min(max(m + sign * s, limits[0]), limits[1]) for m, s in zip(mean, std, strict=True)]
            for sign in (-1, 1)
        )
        axes.fill_between(x, low, high, color=COLOURS[key], alpha=BAND_OPACITY, linewidth=0)
    axes.plot(x, mean, color=COLOURS[key], linewidth=2)


def plot_paper_curve(axes: Axes, points: Any, factor: float = 1.0) -> None:
    """Draw the paper's curve, if there are points, as a dashed line. `factor` multiplies the y values."""
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, [factor * value for value in y], **PAPER_LINE)


def label_end(axes: Axes, key: str, x: Sequence[float], y: Sequence[float], text: str) -> None:
    """Write a text to the right of a curve's end."""
    axes.annotate(
        text,
        (x[-1], y[-1]),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        color=COLOURS[key],
        fontweight="bold",
        annotation_clip=False,
    )


def add_legend(figure: Figure, axes: Axes, dotted: str | None, band: bool = True) -> None:
    """Explain the band, dashed and dotted lines below the panels. `axes` is any of the panels."""
    grey: dict[str, Any] = {"color": TEXT_COLOUR, "linewidth": 2}
    handles: list[Any] = [*axes.plot([], [], **grey, label="mean over test points" if band else "ours")]
    if band:
        handles.append(
            axes.fill_between([], [], color=TEXT_COLOUR, alpha=BAND_OPACITY, linewidth=0, label="± std")
        )
    handles += axes.plot([], [], **PAPER_LINE, label="the paper's mean" if band else "the paper's")
    if dotted is not None:
        handles += axes.plot([], [], **DOTTED_LINE, label=dotted)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
