"""Write names beside the points of a picture, where they cover neither each other nor a line."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

# In points, of which an inch has 72.
DISTANCES = (8, 12, 18, 26, 36, 48, 62, 78)
MARK_RADIUS, LINE_RADIUS = 5.0, 1.5
LONGEST_WITHOUT_LEADER = 8.0
DIRECTIONS = 24
# What it costs to leave the axes, to cover a thing, and to lead a line across one, in points of distance.
OUTSIDE, COVERED, CROSSED = 1e6, 1e3, 100.0


class Label(NamedTuple):
    """A text that belongs to the point x, y, in data coordinates."""

    text: str
    x: float
    y: float
    style: dict[str, Any]  # of the text
    optional: bool = False  # left out where there is no room beside its point


class _Place(NamedTuple):
    """A point in pixels."""

    x: float
    y: float


def place_labels(axes: Axes, labels: Sequence[Label], line: tuple[Sequence[float], Sequence[float]]) -> None:
    """Write each label as near to its point as there is room. The first labels choose first.

    A thin line leads to the point from a label that is not beside it. Call this last: neither the limits of
    the axes nor what is around them may change afterwards.

    Args:
        axes: with all points and lines drawn.
        labels: the labels. They cover no point of another label.
        line: x and y of a line that labels do not cover.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()  # settles where the axes are
    point = figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    places = [_Place(*axes.transData.transform((each.x, each.y))) for each in labels]
    taken = [_box_around(place, MARK_RADIUS * point) for place in places]
    taken += [_box_around(place, LINE_RADIUS * point) for place in _along(axes, line, 3 * point)]
    for label, place in zip(labels, places, strict=True):
        text = axes.annotate(
            label.text, (label.x, label.y), (0, 0), textcoords="offset points", va="bottom", **label.style
        )
        text.set_in_layout(False)
        size = text.get_window_extent(renderer)
        boxes = list(_candidates(place, size.width, size.height, point))
        costs = [_cost(box, place, taken, frame, point) for box in boxes]
        least = min(costs)
        box = boxes[costs.index(least)]
        beside = least <= LONGEST_WITHOUT_LEADER
        if beside or not label.optional:
            taken += [box, *_leader(box, place, point)]
            text.set_position(((box.x0 - place.x) / point, (box.y0 - place.y) / point))
            if not beside:
                _draw_leader(axes, box, label)
        else:
            text.remove()


def _candidates(place: _Place, width: float, height: float, point: float) -> Iterator[Bbox]:
    """Boxes of a text in each direction from a place, at each distance."""
    for distance in DISTANCES:
        for step in range(DIRECTIONS):
            angle = 2 * math.pi * step / DIRECTIONS
            right, up = math.cos(angle), math.sin(angle)
            # A text on the right starts at the distance, one on the left ends there, one above is centred.
            x = place.x + point * distance * right + (right - 1) / 2 * width
            y = place.y + point * distance * up + (up - 1) / 2 * height
            yield Bbox.from_bounds(x, y, width, height)


def _cost(box: Bbox, place: _Place, taken: list[Bbox], frame: Bbox, point: float) -> float:
    """The distance in points, and much more for whatever is covered."""
    outside = not (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)
    crossed = sum(each.count_overlaps(taken) for each in _leader(box, place, point))
    nearest = _nearest_point(box, place)
    distance = math.dist(nearest, place) / point
    return OUTSIDE * outside + COVERED * box.count_overlaps(taken) + CROSSED * crossed + distance


def _leader(box: Bbox, place: _Place, point: float) -> list[Bbox]:
    """Small boxes along the line from a text to the mark at a place."""
    start = _nearest_point(box, place)
    length = math.dist(start, place)
    steps = int((length - 1.5 * MARK_RADIUS * point) / (2 * point))
    shares = [2 * point * step / length for step in range(1, steps)]
    along = (
        _Place(start.x + share * (place.x - start.x), start.y + share * (place.y - start.y))
        for share in shares
    )
    return [_box_around(each, 0.5 * point) for each in along]


def _draw_leader(axes: Axes, box: Bbox, label: Label) -> None:
    place = _Place(*axes.transData.transform((label.x, label.y)))
    start = axes.transData.inverted().transform(_nearest_point(box, place))
    style = {"arrowstyle": "-", "color": label.style["color"], "linewidth": 0.7}
    line = axes.annotate("", (label.x, label.y), start, arrowprops=style | {"shrinkA": 0, "shrinkB": MARK_RADIUS})
    line.set_in_layout(False)


def _nearest_point(box: Bbox, place: _Place) -> _Place:
    """The point of a box that is nearest to a place."""
    return _Place(min(max(place.x, box.x0), box.x1), min(max(place.y, box.y0), box.y1))


def _box_around(place: _Place, radius: float) -> Bbox:
    return Bbox.from_extents(place.x - radius, place.y - radius, place.x + radius, place.y + radius)


def _along(axes: Axes, line: tuple[Sequence[float], Sequence[float]], step: float) -> Iterator[_Place]:
    """Places along a line, at most a step apart."""
    corners = axes.transData.transform(list(zip(*line, strict=True)))
    for (x0, y0), (x1, y1) in zip(corners[:-1], corners[1:], strict=True):
        parts = max(1, math.ceil(math.dist((x0, y0), (x1, y1)) / step))
        for part in range(parts + 1):
            yield _Place(x0 + (x1 - x0) * part / parts, y0 + (y1 - y0) * part / parts)
