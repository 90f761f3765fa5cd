"""Write names beside the points of a picture, where they cover neither each other nor a line."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

# How far from its mark a text is tried, and how far it may be without a line to it, in points (1/72 inch).
DISTANCES = (3, 7, 13, 21, 31, 43, 57, 73)
FAR_FROM_MARK = 4.0
DIRECTIONS = 24
LINE_RADIUS = 1.5
# What it costs to leave the axes, to cover a thing, and to lead a line across one, in points of distance.
OUTSIDE, COVERED, CROSSED = 1e6, 1e3, 100.0


class Label(NamedTuple):
    """A text that belongs to the point x, y, in data coordinates."""

    text: str
    x: float
    y: float
    style: dict[str, Any]  # of the text
    radius: float = 4.5  # of the mark at the point, in points
    optional: bool = False  # left out where there is no room beside its mark


class _Mark(NamedTuple):
    """In pixels."""

    x: float
    y: float
    radius: float

    def box(self) -> Bbox:
        return Bbox.from_bounds(self.x - self.radius, self.y - self.radius, 2 * self.radius, 2 * self.radius)

    def nearest(self, box: Bbox) -> tuple[float, float]:
        """The point of a box that is nearest to the centre."""
        return min(max(self.x, box.x0), box.x1), min(max(self.y, box.y0), box.y1)

    def gap(self, box: Bbox) -> float:
        return max(0.0, math.dist(self.nearest(box), self[:2]) - self.radius)


def place_labels(axes: Axes, labels: Sequence[Label], line: tuple[Sequence[float], Sequence[float]]) -> None:
    """Write each label as near to its mark as there is room. The first labels choose first.

    A thin line leads to the mark from a label that is not beside it. Call this last: neither the limits of
    the axes nor what is around them may change afterwards.

    Args:
        axes: with all marks and lines drawn.
        labels: the labels. They cover no mark of another label.
        line: x and y of a line that labels do not cover.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw_without_rendering()  # settles where the axes are
    point = figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    centres = axes.transData.transform([(each.x, each.y) for each in labels])
    marks = [_Mark(x, y, each.radius * point) for each, (x, y) in zip(labels, centres, strict=True)]
    taken = [mark.box() for mark in marks] + list(_line_boxes(axes, line, point))
    for label, mark in zip(labels, marks, strict=True):
        text = axes.annotate(
            label.text, (label.x, label.y), (0, 0), textcoords="offset points", va="bottom", **label.style
        )
        text.set_in_layout(False)
        size = text.get_window_extent(renderer)
        boxes = list(_candidates(mark, size.width, size.height, point))
        costs = [_cost(box, mark, taken, frame, point) for box in boxes]
        box = boxes[costs.index(min(costs))]
        beside = min(costs) <= FAR_FROM_MARK
        if label.optional and not beside:
            text.remove()
            continue
        taken += [box, *_leader(box, mark, point)]
        text.set_position(((box.x0 - mark.x) / point, (box.y0 - mark.y) / point))
        if mark.gap(box) > FAR_FROM_MARK * point:
            _draw_leader(axes, box, mark, label)


def _candidates(mark: _Mark, width: float, height: float, point: float) -> Iterator[Bbox]:
    """Boxes of a text at each distance from a mark, in each direction."""
    for distance in DISTANCES:
        reach = mark.radius + distance * point
        for step in range(DIRECTIONS):
            angle = 2 * math.pi * step / DIRECTIONS
            right, up = math.cos(angle), math.sin(angle)
            # A text on the right starts at the reach, one on the left ends there, one above is centred.
            x = mark.x + reach * right + (right - 1) / 2 * width
            y = mark.y + reach * up + (up - 1) / 2 * height
            yield Bbox.from_bounds(x, y, width, height)


def _cost(box: Bbox, mark: _Mark, taken: list[Bbox], frame: Bbox, point: float) -> float:
    """The distance in points, and much more for whatever is covered."""
    outside = not (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)
    crossed = sum(each.count_overlaps(taken) for each in _leader(box, mark, point))
    return OUTSIDE * outside + COVERED * box.count_overlaps(taken) + CROSSED * crossed + mark.gap(box) / point


def _leader(box: Bbox, mark: _Mark, point: float) -> list[Bbox]:
    """Small boxes along the line that leads from a text to its mark, if it needs one."""
    x, y = mark.nearest(box)
    gap, length = mark.gap(box), math.dist((x, y), mark[:2])
    if gap <= FAR_FROM_MARK * point:
        return []
    # Neither the text nor the mark, which are taken, counts as crossed.
    ways = [2 * point * step / length for step in range(1, int(gap / (2 * point)))]
    return [_Mark(x + way * (mark.x - x), y + way * (mark.y - y), 0.5 * point).box() for way in ways]


def _draw_leader(axes: Axes, box: Bbox, mark: _Mark, label: Label) -> None:
    start = tuple(axes.transData.inverted().transform(mark.nearest(box)))
    style = {"arrowstyle": "-", "color": label.style["color"], "linewidth": 0.7, "shrinkA": 0}
    line = axes.annotate("", (label.x, label.y), start, arrowprops=style | {"shrinkB": label.radius})
    line.set_in_layout(False)


def _line_boxes(axes: Axes, line: tuple[Sequence[float], Sequence[float]], point: float) -> Iterator[Bbox]:
    """Boxes along a line, close enough that no text fits between them."""
    corners = axes.transData.transform(list(zip(*line, strict=True)))
    for (x0, y0), (x1, y1) in itertools.pairwise(corners):
        parts = max(1, math.ceil(math.dist((x0, y0), (x1, y1)) / (2 * LINE_RADIUS * point)))
        for part in range(parts + 1):
            share = part / parts
            yield _Mark(x0 + share * (x1 - x0), y0 + share * (y1 - y0), LINE_RADIUS * point).box()
