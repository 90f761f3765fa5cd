"""The pictures of the report, as SVG inside the page.

The colours are those of the page's style sheet, so that the pictures follow its light and dark mode. They are
drawn for the width of a phone and become only a little larger elsewhere, so that their text stays legible.
A method has the same style in all of them: its colour and its marker.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup, escape

from bitbayes.auditing.captions import FEW_INPUTS, certificate
from bitbayes.auditing.findings import HISTOGRAM_BINS, KEPT_SHARES, USUAL_SHARE, Audit, OutlierSet
from bitbayes.auditing.words import styles

WIDTH = 340
LEFT, RIGHT, TOP = 46, 324, 10  # of the plotted area
# The marker of each style, see `words.styles`.
MARKERS = {
    "plain": "circle",
    "temperature": "triangle",
    "energy": "diamond",
    "bitbayes": "square",
    "other-1": "triangle-down",
    "other-2": "pentagon",
    "other-3": "cross",
    "other-4": "bar",
}
# The axis of the calibration error is logarithmic, and has no 0.
SMALLEST_ECE = 0.001
MOST_BANDS = 3  # more would hide each other
STRIP_WIDTH, STRIP_HEIGHT = 300, 64

Scale = Callable[[float], float]
Point = tuple[float, float]


def draw_trade_off(audit: Audit, description: str) -> Markup:
    """Draw the calibration error against the share of unfamiliar inputs that get through.

    A marker for each method, and a line through all prior variances. Lower left is better.
    """
    group, curve = audit.groups["unfamiliar"], audit.prior_curve
    assert curve is not None
    style = styles(audit.methods, audit.base)
    points = {m: (max(SMALLEST_ECE, audit.test[m].ece), group.scores[m].fpr95) for m in audit.methods}
    line = [(max(SMALLEST_ECE, ece), fpr95) for ece, fpr95 in zip(curve.ece, curve.fpr95, strict=True)]
    errors = [ece for ece, _ in (*points.values(), *line)]
    bottom = 226
    x = _logarithmic(min(errors) / 1.4, max(errors) * 1.4, LEFT, RIGHT)
    top = _ceiling(max(fpr95 for _, fpr95 in (*points.values(), *line)))
    y = _linear(0, top, bottom, TOP)
    ticks = [t for t in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if LEFT <= x(t) <= RIGHT]
    parts = [
        _axes(bottom),
        *(_x_tick(x(t), bottom, f"{100 * t:g}") for t in ticks),
        *(_y_tick(y(t), f"{100 * t:.0f}") for t in _even_ticks(top)),
        _x_title("calibration error (ECE), %", bottom),
        _y_title("unfamiliar that get through, %", bottom),
        _polyline([(x(a), y(b)) for a, b in line], "curve"),
        *(f'<circle class="curve-dot" cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5"/>' for a, b in line),
        *(marker(style[m], x(a), y(b), 6.5 if m == audit.ours else 5) for m, (a, b) in points.items()),
    ]
    return _svg(description, bottom + 44, parts)


def draw_reliability(audit: Audit, description: str) -> Markup:
    """Draw the accuracy against the confidence in each bin, with 95 % bands, and the counts below.

    Of many methods the first and bitbayes have bands. Bins with fewer than `FEW_INPUTS` inputs are in the
    counts alone.
    """
    bottom, counts_top, counts_bottom = 226, 248, 300
    x, y = _linear(0, 1, LEFT, RIGHT), _linear(0, 1, bottom, TOP)
    parts = [
        _axes(bottom),
        *(_y_tick(y(t / 100), f"{t}") for t in (0, 25, 50, 75, 100)),
        _y_title("right, %", bottom),
        f'<line class="ideal" x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(1):.1f}" y2="{y(1):.1f}"/>',
    ]
    lines, style = [], styles(audit.methods, audit.base)
    banded = audit.own_probabilities
    if len(banded) > MOST_BANDS:
        banded = audit.side_by_side[:2]
    for method in audit.own_probabilities:
        kind = style[method]
        bins = audit.test[method].reliability
        rows = [
            (confidence, accuracy, low, high)
            for count, confidence, accuracy, low, high in zip(
                bins.count, bins.confidence, bins.accuracy, bins.low, bins.high, strict=True
            )
            if count >= FEW_INPUTS and confidence is not None and accuracy is not None
        ]
        edge = [(x(c), y(high or 0.0)) for c, _, _, high in rows]
        edge += [(x(c), y(low or 0.0)) for c, _, low, _ in reversed(rows)]
        if len(rows) == 1 and method in banded:  # a band of no width: a bar
            parts.append(_polyline(edge, f"bar-{kind}"))
        elif rows and method in banded:
            parts.append(f'<polygon class="band {kind}" points="{_points(edge)}"/>')
        lines.append(_polyline([(x(c), y(a)) for c, a, _, _ in rows], f"line {kind}"))
        lines += [marker(kind, x(c), y(a), 4) for c, a, _, _ in rows]
    parts += lines
    parts += _draw_counts(audit, x, counts_top, counts_bottom)
    parts += [_x_tick(x(t / 100), counts_bottom, f"{t}") for t in (0, 25, 50, 75, 100)]
    parts.append(_x_title("confidence, %", counts_bottom))
    return _svg(description, counts_bottom + 44, parts)


def _draw_counts(audit: Audit, x: Scale, top: float, bottom: float) -> list[str]:
    """Draw how many test inputs are in each bin, on a logarithmic axis, a bar for each method."""
    shown, style = audit.own_probabilities, styles(audit.methods, audit.base)
    most = max(max(audit.test[method].reliability.count) for method in shown)
    decades = max(1, math.ceil(math.log10(most + 1)))
    height = _linear(0, decades, bottom, top)
    parts = [_line(LEFT, bottom, RIGHT, bottom, "axis")]
    for number, method in enumerate(shown):
        counts = audit.test[method].reliability.count
        width = (x(1) - x(0)) / len(counts) / (len(shown) + 0.6)
        for b, count in enumerate(counts):
            if count:
                # A single input has a visible bar too.
                level = height(max(0.08, math.log10(count) + 0.08))
                left = x(b / len(counts)) + width * (number + 0.3)
                parts.append(
                    f'<rect class="fill {style[method]}" x="{left:.1f}" y="{level:.1f}" width="{width:.1f}" '
                    f'height="{bottom - level:.1f}"/>'
                )
    parts += [_y_tick(height(decade), f"{10**decade:,}") for decade in {0, decades}]
    return parts


def draw_rays(audit: Audit, description: str) -> Markup:
    """Draw the mean confidence against δ, with bands from the 10 % to the 90 % quantile.

    A dashed line marks a blind guess. The limit, if known, is at the right of the axis, above "∞". The
    certificate, if known, is a thick line: the confidence that is not exceeded from its left end on.
    """
    ray = audit.ray
    assert ray is not None
    bottom = 226
    end = RIGHT - 40 if audit.infinity else RIGHT - 10
    x, y = _logarithmic(1, max(10.0, ray.delta[-1]), LEFT, end), _linear(0, 1, bottom, TOP)
    last = math.log10(max(10.0, ray.delta[-1]))
    parts = [
        _axes(bottom),
        *(_x_tick(x(10.0**e), bottom, f"{10**e:,}") for e in range(int(last + 1e-9) + 1)),
        *(_y_tick(y(t / 100), f"{t}") for t in (0, 25, 50, 75, 100)),
        _x_title("δ: the test inputs are multiplied by this", bottom),
        _y_title("confidence, %", bottom),
        _line(LEFT, y(1 / audit.classes), RIGHT + 8, y(1 / audit.classes), "ideal"),
    ]
    style = styles(audit.methods, audit.base)
    for method in audit.side_by_side[:2]:
        upper = [(x(d), y(v)) for d, v in zip(ray.delta, ray.high[method], strict=True)]
        lower = [(x(d), y(v)) for d, v in zip(ray.delta, ray.low[method], strict=True)]
        parts.append(
            f'<polygon class="band {style[method]}" points="{_points([*upper, *reversed(lower)])}"/>'
        )
    for method in audit.own_probabilities:
        points = [(x(d), y(v)) for d, v in zip(ray.delta, ray.mean[method], strict=True)]
        parts.append(_polyline(points, f"line {style[method]}"))
        parts += [marker(style[method], *points[i], 4) for i in (0, -1)]
    if audit.infinity:
        infinity = RIGHT - 4
        mean = sum(each.mean * each.size for each in audit.infinity) / sum(e.size for e in audit.infinity)
        largest = max(each.largest for each in audit.infinity)
        parts += [
            _x_tick(infinity, bottom, "∞"),
            _line(infinity, y(mean), infinity, y(largest), "line bitbayes"),
            f'<circle class="limit" cx="{infinity}" cy="{y(mean):.1f}" r="5"/>',
        ]
        if certified := certificate(audit):
            alpha, confidence = certified
            left = x(max(1.0, alpha)) if alpha <= ray.delta[-1] else end + 14
            parts.append(_line(left, y(confidence), RIGHT + 8, y(confidence), "certificate"))
    return _svg(description, bottom + 44, parts)


def draw_strip(audit: Audit, outlier: OutlierSet, method: str) -> Markup:
    """Draw how one method ranks the test data (upwards) and one set of outliers (downwards).

    Inputs to the left of the line are refused. The page's script moves the line to a place in `data-places`.
    """
    ranking = audit.rankings[method]
    places = [STRIP_WIDTH * position for position in ranking.position]
    threshold = places[KEPT_SHARES.index(USUAL_SHARE)]
    middle = STRIP_HEIGHT / 2
    parts = [
        *_bars(ranking.histogram, middle, -1, "test"),
        *_bars(outlier.passing[method].histogram, middle, 1, styles(audit.methods, audit.base)[method]),
        _line(0, middle, STRIP_WIDTH, middle, "axis"),
        f'<rect class="refused" x="0" y="0" width="{threshold:.1f}" height="{STRIP_HEIGHT}"/>',
        f'<line class="threshold" x1="{threshold:.1f}" x2="{threshold:.1f}" y1="0" y2="{STRIP_HEIGHT}"/>',
    ]
    return Markup(
        f'<svg class="strip" viewBox="0 0 {STRIP_WIDTH} {STRIP_HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true" data-places="{" ".join(f"{place:.1f}" for place in places)}">'
        f"{''.join(parts)}</svg>"
    )


def draw_key(style: str) -> Markup:
    """Draw the marker of a style, for legends."""
    return Markup(
        '<svg class="key" viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">'
        f"{marker(style, 7, 7, 5)}</svg>"
    )


def marker(style: str, x: float, y: float, r: float) -> str:
    """Return the marker of a style, centred at (x, y) and of radius r."""
    shape = MARKERS[style]
    if shape == "circle":
        return f'<circle class="fill {style}" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    corners = {
        "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        "triangle": [(0, -1.1), (1.1, 0.85), (-1.1, 0.85)],
        "diamond": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
        "triangle-down": [(0, 1.1), (1.1, -0.85), (-1.1, -0.85)],
        "pentagon": [(0, -1.1), (1.05, -0.34), (0.65, 0.89), (-0.65, 0.89), (-1.05, -0.34)],
        "cross": [(a * u, b * v) for a, b in ((1, -1), (1, 1), (-1, 1), (-1, -1)) for u, v in _arm(a, b)],
        "bar": [(-1.2, -0.5), (1.2, -0.5), (1.2, 0.5), (-1.2, 0.5)],
    }[shape]
    points = [(x + r * a, y + r * b) for a, b in corners]
    return f'<polygon class="fill {style}" points="{_points(points)}"/>'


def _arm(a: int, b: int) -> list[Point]:
    """The corners of a plus sign in one quadrant, in the order of the others."""
    corners = [(0.4, 1.15), (0.4, 0.4), (1.15, 0.4)]
    return corners if a * b < 0 else corners[::-1]


def _bars(histogram: list[int], middle: float, direction: int, kind: str) -> Iterable[str]:
    """Yield the bars of a histogram. Their heights are the roots of the counts, so that few inputs show."""
    width = STRIP_WIDTH / HISTOGRAM_BINS
    highest = math.sqrt(max(*histogram, 1))
    for b, count in enumerate(histogram):
        if count:
            height = (middle - 2) * math.sqrt(count) / highest
            top = middle - height if direction < 0 else middle
            yield (
                f'<rect class="fill {kind}" x="{b * width + 0.5:.1f}" y="{top:.1f}" width="{width - 1:.1f}" '
                f'height="{height:.1f}"/>'
            )


def _svg(description: str, height: float, parts: Sequence[str]) -> Markup:
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(description)}">'
        f"{''.join(parts)}</svg>"
    )


def _linear(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    inner = _linear(math.log(low), math.log(high), start, end)
    return lambda value: inner(math.log(value))


def _ceiling(share: float) -> float:
    """Return the upper end of an axis for shares up to this one."""
    return next((end for end in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8) if share <= 0.95 * end), 1.0)


def _even_ticks(top: float) -> list[float]:
    return [top * i / 4 for i in range(5)] if top not in (0.05, 0.1) else [0, top / 2, top]


def _axes(bottom: float) -> str:
    return _line(LEFT, bottom, RIGHT, bottom, "axis") + _line(LEFT, TOP, LEFT, bottom, "axis")


def _x_tick(x: float, bottom: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{text}</text>'


def _y_tick(y: float, text: str) -> str:
    return f'<text x="{LEFT - 6}" y="{y + 4.5:.1f}" text-anchor="end">{text}</text>'


def _x_title(text: str, bottom: float) -> str:
    return f'<text x="{(LEFT + RIGHT) / 2}" y="{bottom + 37}" text-anchor="middle">{text}</text>'


def _y_title(text: str, bottom: float) -> str:
    middle = (TOP + bottom) / 2
    return f'<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">{text}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _polyline(points: Sequence[Point], kind: str) -> str:
    return f'<polyline class="{kind}" points="{_points(points)}"/>'


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
