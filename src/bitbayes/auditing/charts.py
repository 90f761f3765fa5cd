"""The pictures of the report, as SVG inside the page.

The colours are those of the page's style sheet, so that the pictures follow its light and dark mode. They are
drawn for the width of a phone and become only a little larger elsewhere, so that their text stays legible.
A method has the same style in all of them: its colour and its marker, those of `bitbayes.palette`.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup, escape

from bitbayes.auditing.captions import certificate
from bitbayes.auditing.findings import HISTOGRAM_BINS, KEPT_SHARES, USUAL_SHARE, Audit, OutlierSet
from bitbayes.auditing.words import styles
from bitbayes.palette import METHODS, OTHERS

WIDTH = 340
LEFT, RIGHT, TOP = 46, 324, 10  # of the plotted area
# The axis of the calibration error is logarithmic, and has no 0.
SMALLEST_ECE = 0.001
# The axis of confidence is that of its log odds, and has no 1.
SUREST = 0.9999
CONFIDENCES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999)
ROOM_FOR_TICK = 34
ROUNDING = 1e-9
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
    """Draw confidence − accuracy in groups of inputs against their confidence, on an axis of its own.

    The band is where a calibrated method of the same confidences would be, for bitbayes or the first column.
    A marker is filled where it is outside of its own method's band.
    """
    bottom, style = 226, styles(audit.methods, audit.base)
    shown = {method: audit.test[method].reliability for method in audit.own_probabilities}
    gaps = {m: [c - a for c, a in zip(d.confidence, d.accuracy, strict=True)] for m, d in shown.items()}
    banded = shown[audit.ours or audit.base]
    ends = [0.005, *banded.low, *banded.high, *(gap for each in gaps.values() for gap in each)]
    reach = _nice_ceiling(max(map(abs, ends)))
    every = [min(SUREST, c) for each in shown.values() for c in each.confidence]
    x = _logit(min(every), max(every), LEFT + 12, RIGHT - 12)
    y = _linear(-reach, reach, bottom, TOP)
    band = [(x(c), y(high)) for c, high in zip(banded.confidence, banded.high, strict=True)]
    band += [(x(c), y(low)) for c, low in zip(banded.confidence[::-1], banded.low[::-1], strict=True)]
    parts = [
        f'<polygon class="noise" points="{_points(band)}"/>',
        _axes(bottom),
        *(_y_tick(y(reach * t), f"{100 * reach * t:+.3g}" if t else "0") for t in (-1, -0.5, 0, 0.5, 1)),
        *_confidence_ticks(x, min(every), max(every), bottom),
        _line(LEFT, y(0), RIGHT, y(0), "ideal"),
        _y_title("claimed − right, points", bottom),
        _x_title("confidence, %", bottom),
    ]
    for method, each in shown.items():
        kind = style[method]
        places = [(x(c), y(gap)) for c, gap in zip(each.confidence, gaps[method], strict=True)]
        parts.append(_polyline(places, f"line {kind}"))
        inside = [
            low - ROUNDING <= gap <= high + ROUNDING
            for low, gap, high in zip(each.low, gaps[method], each.high, strict=True)
        ]
        parts += [
            marker(kind, *place, 4, "hollow" if noise else "fill")
            for place, noise in zip(places, inside, strict=True)
        ]
    return _svg(description, bottom + 44, parts)


def _confidence_ticks(x: Scale, low: float, high: float, bottom: float) -> Iterable[str]:
    """Yield ticks at round confidences, as many as there is room for."""
    last = -math.inf
    for confidence in CONFIDENCES:
        if low - 1e-9 <= confidence <= high + 1e-9 and x(confidence) - last >= ROOM_FOR_TICK:
            last = x(confidence)
            yield _x_tick(last, bottom, f"{100 * confidence:g}")


def draw_selective(audit: Audit, description: str) -> Markup:
    """Draw the errors among accepted inputs against the share that is accepted, the most confident first.

    A dashed line is at the risk that is promised, and a ring at the threshold that promises it.
    """
    bottom, style, promise = 226, styles(audit.methods, audit.base), audit.promise
    shown = {method: audit.selective[method] for method in audit.own_probabilities}
    promised = [promise.risk] if promise and promise.threshold is not None else []
    top = _nice_ceiling(max(0.001, *promised, *(risk for each in shown.values() for risk in each)))
    x, y = _linear(KEPT_SHARES[0], 1, LEFT, RIGHT), _linear(0, top, bottom, TOP)
    parts = [
        _axes(bottom),
        *(_x_tick(x(share), bottom, f"{100 * share:g}") for share in (0.5, 0.6, 0.7, 0.8, 0.9, 1)),
        *(_y_tick(y(top * t), f"{100 * top * t:.3g}") for t in (0, 0.5, 1)),
        _x_title("test inputs that are accepted, %", bottom),
        _y_title("errors among them, %", bottom),
        _line(x(USUAL_SHARE), TOP, x(USUAL_SHARE), bottom, "guide"),
    ]
    for method, risks in shown.items():
        places = [(x(share), y(risk)) for share, risk in zip(KEPT_SHARES, risks, strict=True)]
        parts.append(_polyline(places, f"line {style[method]}"))
        parts.append(marker(style[method], *places[KEPT_SHARES.index(USUAL_SHARE)], 4.5))
    if promise and promised:
        share = promise.accepted / promise.points
        parts.append(_line(LEFT, y(promise.risk), RIGHT, y(promise.risk), "promised"))
        label = f"promised: at most {100 * promise.risk:g}%"
        parts.append(f'<text x="{LEFT + 6}" y="{y(promise.risk) + 16:.1f}">{label}</text>')
        if share >= KEPT_SHARES[0]:
            rate = promise.errors / promise.accepted
            parts.append(f'<circle class="limit" cx="{x(share):.1f}" cy="{y(rate):.1f}" r="6"/>')
    return _svg(description, bottom + 44, parts)


def draw_rays(audit: Audit, description: str) -> Markup:
    """Draw the mean confidence against δ, with bands from the 10% to the 90% quantile.

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


def marker(style: str, x: float, y: float, r: float, kind: str = "fill") -> str:
    """Return the marker of a style, centred at (x, y) and of radius r; `kind` is "fill" or "hollow"."""
    named = METHODS | {f"other-{i}": each for i, each in enumerate(OTHERS, 1)}
    shape = named[style].marker
    if shape == "o":
        return f'<circle class="{kind} {style}" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    points = [(x + r * a, y + r * b) for a, b in CORNERS[shape]]
    return f'<polygon class="{kind} {style}" points="{_points(points)}"/>'


def _star(points: int, inner: float) -> list[Point]:
    """The corners of a star, the first at the top."""
    turns = [math.pi * i / points for i in range(2 * points)]
    return [
        ((inner if i % 2 else 1.3) * math.sin(t), -(inner if i % 2 else 1.3) * math.cos(t))
        for i, t in enumerate(turns)
    ]


# The markers of `bitbayes.palette`, which are those of matplotlib, but for the circle.
PLUS = [(0.4, 1.15), (0.4, 0.4), (1.15, 0.4), (1.15, -0.4), (0.4, -0.4), (0.4, -1.15)]
PLUS += [(-x, -y) for x, y in PLUS]
TURN = math.sqrt(0.5)
CORNERS: dict[str, list[Point]] = {
    "s": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "^": [(0, -1.1), (1.1, 0.85), (-1.1, 0.85)],
    "v": [(0, 1.1), (1.1, -0.85), (-1.1, -0.85)],
    "<": [(-1.1, 0), (0.85, -1.1), (0.85, 1.1)],
    ">": [(1.1, 0), (-0.85, -1.1), (-0.85, 1.1)],
    "D": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
    "*": _star(5, 0.55),
    "P": PLUS,
    "X": [(TURN * (x - y), TURN * (x + y)) for x, y in PLUS],
}


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


def _logit(low: float, high: float, start: float, end: float) -> Scale:
    """Return the axis of log odds. If all are equal they are in the middle."""

    def odds(value: float) -> float:
        value = min(SUREST, max(1 - SUREST, value))
        return math.log(value / (1 - value))

    if odds(high) - odds(low) < 1e-9:
        return lambda value: (start + end) / 2
    inner = _linear(odds(low), odds(high), start, end)
    return lambda value: inner(odds(value))


def _nice_ceiling(value: float) -> float:
    """Return the next number up with one digit, which is no odd number above 5.

    >>> _nice_ceiling(0.013), _nice_ceiling(0.02), _nice_ceiling(0.065)
    (0.02, 0.02, 0.08)
    """
    power = 10.0 ** math.floor(math.log10(value))
    return next(round(n * power, 12) for n in (1, 2, 3, 4, 5, 6, 8, 10) if value <= n * power * (1 + 1e-9))


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
