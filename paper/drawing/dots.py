"""Dot plots: a row for each method, a panel for each set, and the numbers beside the dots."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from paper.drawing.curves import DOTTED_LINE
from paper.drawing.pictures import (
    BITBAYES,
    COLOURS,
    GRID_COLOUR,
    MARKERS,
    PAGE_WIDTH,
    TEXT_COLOUR,
    marker_style,
    wrap_title,
)

# In inches: a row; a line of a panel's title; what a block needs for its heading and its axis.
ROW_HEIGHT, LINE_HEIGHT, BLOCK_HEIGHT, LEGEND_HEIGHT = 0.205, 0.15, 0.62, 0.3
NAMES_WIDTH, NUMBER_WIDTH, TICK_WIDTH = 1.9, 0.45, 0.5
MARGIN = 0.08  # in widths of the axis: a marker at the end does not reach into the next panel
HOLLOW: dict[str, Any] = {"markerfacecolor": "none", "markersize": 9.5, "markeredgewidth": 1.2, "zorder": 4}
# Best is the largest or the least mean.
Best = Callable[[Iterable[float]], float]


@dataclass(frozen=True)
class Cell:
    """A method's values, one for each trial, and the paper's mean."""

    values: Sequence[float]
    paper: float | None = None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def extent(self) -> list[float]:
        """All that a dot's panel has to show: both ends of the whisker, and the paper's mean."""
        ends = [self.mean - self.spread, self.mean + self.spread] if self.values else []
        return ends + ([] if self.paper is None else [self.paper])


@dataclass(frozen=True)
class Panel:
    """A set, or a quantity."""

    title: str
    cells: Mapping[str, Cell]  # by method
    best: Best | None = None  # this number is bold
    dotted: float | None = None  # where a dotted line is
    limits: tuple[float, float] = (0.0, 100.0)  # possible values, at which whiskers end
    least_span: float = 2.0  # of the axis: smaller differences mean nothing
    number: Callable[[float], str] = "{:.1f}".format
    log: bool = False


@dataclass(frozen=True)
class Block:
    """Panels side by side, which share their rows. None leaves a place empty."""

    heading: str
    panels: Sequence[Panel | None]

    def rows(self, titles: Mapping[str, str]) -> list[str]:
        """Return the methods that some panel shows anything of, in the order of `titles`."""
        cells = [panel.cells for panel in self.panels if panel]
        return [key for key in titles if any(each[key].extent for each in cells if key in each)]


def draw_blocks(titles: Mapping[str, str], blocks: Sequence[Block], dotted: str | None = None) -> Figure:
    """Draw blocks of panels below each other.

    Args:
        titles: the methods' names, in the order of the rows.
        blocks: what to draw.
        dotted: what the dotted lines are.
    """
    columns = max(len(block.panels) for block in blocks)
    width = (PAGE_WIDTH - NAMES_WIDTH) / columns - NUMBER_WIDTH
    names = [_wrap_titles(block, width + NUMBER_WIDTH) for block in blocks]
    heights = [
        BLOCK_HEIGHT + ROW_HEIGHT * len(block.rows(titles)) + LINE_HEIGHT * max(map(_count_lines, wrapped))
        for block, wrapped in zip(blocks, names, strict=True)
    ]
    figure = Figure(figsize=(PAGE_WIDTH, sum(heights) + LEGEND_HEIGHT), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, block, wrapped in zip(parts, blocks, names, strict=True):
        _draw_block(part, block, wrapped, titles, columns, max(2, int(width / TICK_WIDTH)))
    _add_legend(figure, parts[0].axes[0], blocks, dotted)
    return figure


def _wrap_titles(block: Block, width: float) -> list[str]:
    return [wrap_title(panel.title, width) if panel else "" for panel in block.panels]


def _count_lines(text: str) -> int:
    return 1 + text.count("\n")


def _draw_block(
    part: SubFigure, block: Block, names: Sequence[str], titles: Mapping[str, str], columns: int, ticks: int
) -> None:
    rows = block.rows(titles)
    part.suptitle(block.heading, x=0.005, ha="left", fontsize=10, fontweight="bold")
    row = part.subplots(1, columns, sharey=True, squeeze=False)[0]
    for axes in row[len(block.panels) :]:
        axes.set_axis_off()
    for axes, panel, name in zip(row, block.panels, names, strict=False):
        if panel is None:
            axes.set_axis_off()
            continue
        axes.set_title(name, loc="left")
        _draw_panel(axes, panel, rows, ticks)
    row[0].set(yticks=range(len(rows)), yticklabels=[titles[key] for key in rows])
    row[0].set_ylim(len(rows) - 0.4, -0.6)  # the first row is at the top
    for key, label in zip(rows, row[0].get_yticklabels(), strict=True):
        if key in BITBAYES:
            label.set(color=COLOURS["default"], fontweight="bold")


def _draw_panel(axes: Axes, panel: Panel, rows: Sequence[str], ticks: int) -> None:
    axes.grid(color=GRID_COLOUR, linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    means = [cell.mean for cell in panel.cells.values() if cell.values]
    best = panel.number(panel.best(means)) if panel.best and means else None
    if all(panel.number(mean) == best for mean in means):  # no method is better than the others
        best = None
    if panel.dotted is not None:
        axes.axvline(panel.dotted, **DOTTED_LINE)
    for y, key in enumerate(rows):
        if key in BITBAYES:
            axes.axhspan(y - 0.5, y + 0.5, color=COLOURS["default"], alpha=0.1, linewidth=0)
        if key in panel.cells:
            _draw_cell(axes, panel, key, y, best)
    _set_range(axes, panel, ticks)


def _draw_cell(axes: Axes, panel: Panel, key: str, y: float, best: str | None) -> None:
    cell, style = panel.cells[key], marker_style(key)
    if cell.values:
        low, high = panel.limits
        whisker = [max(low, cell.mean - cell.spread), min(high, cell.mean + cell.spread)]
        axes.plot(whisker, [y, y], color=style["color"], linewidth=1.4)
        axes.plot([cell.mean], [y], **style, zorder=3)
        text = panel.number(cell.mean)
        axes.annotate(
            text,
            (1, y),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            fontweight="bold" if text == best else "normal",
        )
    if cell.paper is not None:  # around ours, so that both are visible where they agree
        axes.plot([cell.paper], [y], **(style | HOLLOW))


def _set_range(axes: Axes, panel: Panel, ticks: int) -> None:
    """Show all dots and whiskers, and no more: dots that are close together stay apart."""
    low, high = panel.limits
    shown = [min(max(value, low), high) for cell in panel.cells.values() for value in cell.extent]
    if panel.log:
        axes.set(xscale="log", xlim=(0.7 * min(shown), 1.4 * max(shown)))
        axes.xaxis.set_major_locator(LogLocator(numticks=ticks + 1))
        axes.xaxis.set_minor_formatter(NullFormatter())
        return
    first, last = min(shown, default=low), max(shown, default=high)
    missing = max(0.0, panel.least_span - (last - first))
    first, last = first - missing / 2, last + missing / 2
    shift = max(0.0, low - first) - max(0.0, last - high)  # back to where values are possible
    margin = MARGIN * (last - first)
    axes.set_xlim(first + shift - margin, last + shift + margin)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10]))


def _add_legend(figure: Figure, axes: Axes, blocks: Sequence[Block], dotted: str | None) -> None:
    panels = [panel for block in blocks for panel in block.panels if panel]
    cells = [cell for panel in panels for cell in panel.cells.values()]
    style: dict[str, Any] = {"color": TEXT_COLOUR, "linestyle": "none", "marker": MARKERS["plain"]}
    handles: list[Any] = []
    if any(len(cell.values) > 1 for cell in cells):
        line = {"linestyle": "-", "linewidth": 1.4}
        handles += axes.plot([], [], **(style | line), label="ours: mean ± std over trials")
    else:
        handles += axes.plot([], [], **style, label="ours")
    if any(cell.paper is not None for cell in cells):
        handles += axes.plot([], [], **(style | HOLLOW), label="hollow: the paper's")
    if any(panel.dotted is not None for panel in panels):
        handles += axes.plot([], [], **DOTTED_LINE, label=dotted)
    if any(panel.best for panel in panels):
        handles += axes.plot([], [], linestyle="none", label="bold number: the best")
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
