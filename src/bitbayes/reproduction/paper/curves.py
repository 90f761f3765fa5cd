"""Curves of one quantity against another, a panel for each problem: drawing and writing shared by figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bitbayes.reproduction.paper.pictures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def band(
    axes: Axes, key: str, x: Sequence[float], mean: Sequence[float], std: Sequence[float] | None, label: str
) -> None:
    """A mean line in a band of ± 3 standard deviations."""
    if std is not None:
        low = [m - 3 * s for m, s in zip(mean, std, strict=True)]
        high = [m + 3 * s for m, s in zip(mean, std, strict=True)]
        axes.fill_between(x, low, high, color=COLOURS[key], alpha=0.15, linewidth=0)
    # What the residual adds is nothing near the data: dotted, so that what lies below it is seen.
    style = ":" if key == "ours-plus-residual" else "-"
    axes.plot(x, mean, color=COLOURS[key], linestyle=style, linewidth=1.8, label=label)


def paper_line(axes: Axes, key: str, points: Any, factor: float = 1.0) -> None:
    """The paper's curve, dashed; nothing where it has none."""
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, [factor * value for value in y], color=COLOURS[key], linestyle="--", linewidth=1.1)
