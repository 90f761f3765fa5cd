"""Write names beside the points of a picture, where they cover neither each other nor a line."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation
from torch import Tensor

# How far from its mark a text is tried, and how far it may be without a line to it, in points (1/72 inch).
DISTANCES = (3, 7, 13, 21, 31, 43, 57, 73)
FAR_FROM_MARK = 7.5
DIRECTIONS = 24
LINE_RADIUS = 1.5
# What it costs to leave the axes, to cover a thing, and to lead a line across one, in points of distance.
OUTSIDE, COVERED, CROSSED = 1e6, 1e4, 100.0
ROUNDS = 3

# Left, bottom, right and top, in points.
Box = tuple[float, float, float, float]


class Label(NamedTuple):
    """A text that belongs to the point x, y, in data coordinates."""

    text: str
    x: float
    y: float
    style: dict[str, Any]  # of the text
    radius: float = 4.5  # of the mark at the point, in points
    optional: bool = False  # left out where there is no room beside its mark


class _Mark(NamedTuple):
    """In points."""

    x: float
    y: float
    radius: float

    def box(self) -> Box:
        return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius

    def nearest(self, box: Box) -> tuple[float, float]:
        """The point of a box that is nearest to the centre."""
        left, bottom, right, top = box
        return min(max(self.x, left), right), min(max(self.y, bottom), top)

    def gap(self, box: Box) -> float:
        return max(0.0, math.dist(self.nearest(box), self[:2]) - self.radius)


class _Candidates:
    """The places that a text may take, with what each costs by itself, and the line that leads from it."""

    def __init__(self, mark: _Mark, width: float, height: float, frame: Box) -> None:
        self.boxes = list(_boxes_around(mark, width, height))
        self.leaders = [_leader(box, mark) for box in self.boxes]
        self.own = torch.tensor([mark.gap(box) + OUTSIDE * _leaves(box, frame) for box in self.boxes])
        flat = [(place, box) for place, leader in enumerate(self.leaders) for box in leader]
        self.owners = torch.tensor([place for place, _ in flat], dtype=torch.long)
        self.leader_boxes = [box for _, box in flat]

    def best(self, taken: list[Box]) -> tuple[int, float]:
        """The number of the best place, and its cost."""
        crossed = torch.zeros(len(self.boxes))
        crossed.index_add_(0, self.owners, _count_overlaps(self.leader_boxes, taken))
        costs = self.own + COVERED * _count_overlaps(self.boxes, taken) + CROSSED * crossed
        return int(costs.argmin()), float(costs.min())


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
    pixels = figure.dpi / 72  # in a point
    extent = axes.get_window_extent(renderer)
    frame = extent.x0 / pixels, extent.y0 / pixels, extent.x1 / pixels, extent.y1 / pixels
    centres = axes.transData.transform([(each.x, each.y) for each in labels]) / pixels
    marks = [_Mark(x, y, each.radius) for each, (x, y) in zip(labels, centres, strict=True)]
    corners = axes.transData.transform(list(zip(*line, strict=True))) / pixels
    texts = [_write(axes, label) for label in labels]
    candidates = []
    for text, mark in zip(texts, marks, strict=True):
        size = text.get_window_extent(renderer)
        candidates.append(_Candidates(mark, size.width / pixels, size.height / pixels, frame))
    places = _choose(labels, candidates, [*(mark.box() for mark in marks), *_boxes_along(corners.tolist())])
    for this, (label, text, mark) in enumerate(zip(labels, texts, marks, strict=True)):
        if this not in places:
            text.remove()
            continue
        box = candidates[this].boxes[places[this]]
        text.set_position((box[0] - mark.x, box[1] - mark.y))
        if mark.gap(box) > FAR_FROM_MARK:
            x, y = mark.nearest(box)
            _draw_leader(axes, label, (x - mark.x, y - mark.y))


def _choose(labels: Sequence[Label], candidates: list[_Candidates], fixed: list[Box]) -> dict[int, int]:
    """The number of the place of each label, without those that are left out."""
    places: dict[int, int] = {}
    # In later rounds a label makes room for those that chose after it.
    for this, label in [*enumerate(labels)] * ROUNDS:
        others = [(candidates[other], place) for other, place in places.items() if other != this]
        texts = [each.boxes[place] for each, place in others]
        leaders = itertools.chain(*(each.leaders[place] for each, place in others))
        place, cost = candidates[this].best([*fixed, *texts, *leaders])
        places[this] = place
        if label.optional and cost > FAR_FROM_MARK:
            del places[this]
    return places


def _boxes_around(mark: _Mark, width: float, height: float) -> Iterator[Box]:
    """Boxes of a text at each distance from a mark, in each direction."""
    for distance in DISTANCES:
        for step in range(DIRECTIONS):
            angle = 2 * math.pi * step / DIRECTIONS
            right, up = math.cos(angle), math.sin(angle)
            # A text on the right starts at the distance, one on the left ends there, one above is centred.
            x = mark.x + (mark.radius + distance) * right + (right - 1) / 2 * width
            y = mark.y + (mark.radius + distance) * up + (up - 1) / 2 * height
            yield x, y, x + width, y + height


def _leader(box: Box, mark: _Mark) -> list[Box]:
    """Small boxes along the line that leads from a text to its mark, if it needs one."""
    (x, y), gap = mark.nearest(box), mark.gap(box)
    if gap <= FAR_FROM_MARK:
        return []
    # Neither the text nor the mark, which are taken, counts as crossed.
    ways = [2 * step / (gap + mark.radius) for step in range(1, int(gap / 2))]
    return [_Mark(x + way * (mark.x - x), y + way * (mark.y - y), 0.5).box() for way in ways]


def _boxes_along(corners: list[tuple[float, float]]) -> Iterator[Box]:
    """Boxes along a line, close enough that no text fits between them."""
    for (x0, y0), (x1, y1) in itertools.pairwise(corners):
        parts = max(1, math.ceil(math.dist((x0, y0), (x1, y1)) / (2 * LINE_RADIUS)))
        for share in (part / parts for part in range(parts + 1)):
            yield _Mark(x0 + share * (x1 - x0), y0 + share * (y1 - y0), LINE_RADIUS).box()


def _count_overlaps(boxes: list[Box], taken: list[Box]) -> Tensor:
    """How many of the taken boxes each box overlaps."""
    ours, theirs = torch.tensor(boxes).reshape(-1, 1, 4), torch.tensor(taken).reshape(1, -1, 4)
    apart = (ours[..., :2] >= theirs[..., 2:]) | (ours[..., 2:] <= theirs[..., :2])  # to either side
    return (~apart.any(2)).sum(1).float()


def _leaves(box: Box, frame: Box) -> bool:
    return box[0] < frame[0] or box[1] < frame[1] or box[2] > frame[2] or box[3] > frame[3]


def _write(axes: Axes, label: Label) -> Annotation:
    """The text of a label, not yet at its place."""
    where = label.x, label.y
    text = axes.annotate(label.text, where, (0, 0), textcoords="offset points", va="bottom", **label.style)
    text.set_in_layout(False)
    return text


def _draw_leader(axes: Axes, label: Label, start: tuple[float, float]) -> None:
    """Draw a line to the mark from a point beside it, in points."""
    style = {"arrowstyle": "-", "color": label.style["color"], "linewidth": 0.7, "shrinkA": 0}
    style |= {"shrinkB": label.radius}
    line = axes.annotate("", (label.x, label.y), start, textcoords="offset points", arrowprops=style)
    line.set_in_layout(False)
