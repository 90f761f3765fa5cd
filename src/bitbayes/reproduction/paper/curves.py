"""Draw curves: ours with a band, and the paper's."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from bitbayes.reproduction.paper.pictures import COLOURS


def plot_band(
    axes: Axes, key: str, x: Sequence[float], mean: Sequence[float], std: Sequence[float] | None, label: str
) -> None:
    """Draw a mean line in a band of ± 3 standard deviations. Without `std`, draw only the line."""
    if std is not None:
        low = [m - 3 * s for m, s in zip(mean, std, strict=True)]
        high = [m + 3 * s for m, s in zip(mean, std, strict=True)]
        axes.fill_between(x, low, high, color=COLOURS[key], alpha=0.15, linewidth=0)
    # Near the data this method coincides with another one. Its dots leave the other line visible.
    style = ":" if key == "ours-plus-residual" else "-"
    axes.plot(x, mean, color=COLOURS[key], linestyle=style, linewidth=1.8, label=label)


def plot_paper_curve(axes: Axes, key: str, points: Any, factor: float = 1.0) -> None:
    """Draw the paper's curve, if there are points, as a dashed line. `factor` multiplies the y values."""
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, [factor * value for value in y], color=COLOURS[key], linestyle="--", linewidth=1.1)
