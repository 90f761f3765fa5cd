"""Labels cover neither each other, nor marks, nor lines, and stay in the picture."""

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from paper.drawing.direct_labels import Label, place_labels

STYLE = {"color": "#333333"}
DIAGONAL = ([0.0, 1.0], [0.0, 1.0])


def place(labels, line=DIAGONAL):
    """The axes, and the box of each text that was written."""
    figure = Figure(figsize=(4, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(*line)
    axes.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
    place_labels(axes, labels, line)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    # Of the text alone: `get_window_extent` of an annotation also holds its line.
    texts = [text for text in axes.texts if text.get_text()]
    return axes, {text.get_text(): Bbox(text.get_window_extent(renderer)) for text in texts}


CROWDS = {
    "one place": [(0.5, 0.5)] * 5,
    "a corner": [(0.0, 0.0), (0.01, 0.0), (0.0, 0.01), (0.02, 0.02)],
    "the right edge": [(1.0, y) for y in (0.5, 0.52, 0.54, 0.56)],
    "apart": [(0.2, 0.8), (0.8, 0.2), (0.5, 0.1)],
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_nothing_is_covered(crowd):
    names = ["bitbayes (default)", "temperature scaling", "plain network", "by evidence", "by NLL"]
    labels = [Label(name, x, y, STYLE) for name, (x, y) in zip(names, CROWDS[crowd], strict=False)]
    axes, boxes = place(labels)
    assert set(boxes) == {label.text for label in labels}
    frame = axes.get_window_extent()
    for box in boxes.values():
        assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
    for first, second in itertools.combinations(boxes.values(), 2):
        assert not first.overlaps(second)
    covered = [(label.x, label.y) for label in labels] + [(i / 200, i / 200) for i in range(201)]
    for point in axes.transData.transform(covered):
        assert not any(box.contains(*point) for box in boxes.values())


def test_a_line_leads_to_the_mark_from_a_label_that_is_not_beside_it():
    axes, _ = place([Label("alone", 0.2, 0.8, STYLE)])
    assert [text.get_text() for text in axes.texts] == ["alone"]
    axes, _ = place([Label(f"label number {i}", 0.2, 0.8, STYLE) for i in range(6)])
    lines = [text for text in axes.texts if not text.get_text()]
    assert lines and all(line.xy == (0.2, 0.8) for line in lines)


def test_optional_labels_give_way():
    crowd = [Label(f"label number {i}", 0.2, 0.8, STYLE) for i in range(12)]
    last = Label("optional label", 0.2, 0.8, STYLE, optional=True)
    assert "optional label" not in place([*crowd, last])[1]
    assert "optional label" in place([crowd[0], last])[1]


def test_larger_marks_keep_labels_further_away():
    def gap(radius):
        axes, boxes = place([Label("text", 0.2, 0.8, STYLE, radius)])
        x, y = axes.transData.transform((0.2, 0.8))
        box = boxes["text"]
        return max(box.x0 - x, x - box.x1, box.y0 - y, y - box.y1) / axes.get_figure().dpi * 72

    assert gap(4) >= 4 and gap(20) >= 20
