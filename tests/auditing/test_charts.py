"""The pictures: what is drawn, and where."""

import math
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from bitbayes.auditing import charts
from bitbayes.auditing.findings import KEPT_SHARES, Audit, ReliabilityDiagram
from bitbayes.palette import METHODS, OTHERS

Element = ET.Element


def drawn(picture: str) -> Element:
    return ET.fromstring(str(picture))


def of_class(root: Element, *kinds: str) -> list[Element]:
    return [each for each in root.iter() if set(kinds) <= set((each.get("class") or "").split())]


def places(element: Element) -> list[tuple[float, float]]:
    pairs = [each.split(",") for each in (element.get("points") or "").split()]
    return [(float(x), float(y)) for x, y in pairs]


def centre(element: Element) -> tuple[float, float]:
    if element.tag == "circle":
        return float(element.get("cx") or 0), float(element.get("cy") or 0)
    found = places(element)
    return sum(x for x, _ in found) / len(found), sum(y for _, y in found) / len(found)


def test_the_trade_off_has_better_methods_at_the_lower_left(audit: Audit) -> None:
    root = drawn(charts.draw_trade_off(audit, "a <description>"))
    assert root.get("aria-label") == "a <description>"
    at = {m: centre(of_class(root, "fill", m)[0]) for m in audit.methods}
    # ECE: bitbayes 1%, temperature 2%, plain and energy 9%. What gets through: 10 and 40%.
    assert at["bitbayes"][0] < at["temperature"][0] < at["plain"][0]
    assert at["bitbayes"][1] > at["plain"][1]  # y grows downwards
    (curve,) = of_class(root, "curve")
    assert len(places(curve)) == len(of_class(root, "curve-dot")) == 3


def test_reliability_has_a_band_and_markers_that_are_filled_outside_of_it(audit: Audit) -> None:
    def bins(*gaps: float) -> ReliabilityDiagram:
        confidence = [0.6, 0.9, 0.99]
        right = [c - gap for c, gap in zip(confidence, gaps, strict=True)]
        return ReliabilityDiagram([100] * 3, confidence, right, [-0.03] * 3, [0.03] * 3)

    test = {
        m: replace(s, reliability=bins(0.2, 0.031, 0.03) if m == "plain" else bins(0.0, -0.01, 0.0))
        for m, s in audit.test.items()
    }
    root = drawn(charts.draw_reliability(replace(audit, test=test), "reliability"))
    assert audit.own_probabilities == ("plain", "temperature", "bitbayes")
    assert not of_class(root, "energy")  # it has the plain network's probabilities
    assert [len(of_class(root, "fill", m)) for m in audit.own_probabilities] == [2, 0, 0]
    assert [len(of_class(root, "hollow", m)) for m in audit.own_probabilities] == [1, 3, 3]
    (ideal,), (noise,) = of_class(root, "ideal"), of_class(root, "noise")
    zero = float(ideal.get("y1") or 0)
    assert len(places(noise)) == 6
    (claimed,), (ours,) = of_class(root, "line", "plain"), of_class(root, "line", "bitbayes")
    assert all(y < zero for _, y in places(claimed))  # it claims too much, and y grows downwards
    assert [y == zero for _, y in places(ours)] == [True, False, True]
    x = [x for x, _ in places(ours)]
    odds = [math.log(c / (1 - c)) for c in (0.6, 0.9, 0.99)]
    assert (x[1] - x[0]) / (x[2] - x[0]) == pytest.approx((odds[1] - odds[0]) / (odds[2] - odds[0]), abs=0.01)


def test_errors_are_drawn_against_the_share_that_is_accepted(audit: Audit) -> None:
    root = drawn(charts.draw_selective(audit, "selective"))
    for method in audit.own_probabilities:
        (line,) = of_class(root, "line", method)
        assert len(places(line)) == len(KEPT_SHARES)
        assert places(line)[0][1] > places(line)[-1][1]  # the fewer are accepted, the fewer are wrong
    (promised,), (ring,) = of_class(root, "promised"), of_class(root, "limit")
    assert audit.promise is not None
    # 6 of 360 are wrong, and 5% is promised.
    assert centre(ring)[1] > float(promised.get("y1") or 0)
    few = replace(audit.promise, accepted=100)
    assert not of_class(drawn(charts.draw_selective(replace(audit, promise=few), "")), "limit")
    for none in (None, replace(audit.promise, threshold=None)):
        assert not of_class(drawn(charts.draw_selective(replace(audit, promise=none), "")), "promised")


def test_rays_have_lines_bands_limit_and_certificate(audit: Audit) -> None:
    root = drawn(charts.draw_rays(audit, "rays"))
    assert [len(of_class(root, "line", m)) for m in audit.own_probabilities] == [
        1,
        1,
        2,
    ]  # and the limits' range
    assert len(of_class(root, "limit")) == len(of_class(root, "certificate")) == 1
    (certificate,) = of_class(root, "certificate")
    (x0, _), (x1, _) = places(of_class(root, "line", "plain")[0])
    # It begins at the largest alpha, δ = 33, between 1 and 10,000.
    assert x0 < float(certificate.get("x1") or 0) < (x0 + x1) / 2
    beyond = [replace(each, alpha=1e9) for each in audit.infinity]
    (certificate,) = of_class(drawn(charts.draw_rays(replace(audit, infinity=beyond), "rays")), "certificate")
    assert float(certificate.get("x1") or 0) > x1
    without = drawn(charts.draw_rays(replace(audit, infinity=[]), "rays"))
    assert not of_class(without, "limit") and not of_class(without, "certificate")


def test_a_strip_has_test_inputs_above_and_outliers_below_the_line(audit: Audit) -> None:
    root = drawn(charts.draw_strip(audit, audit.outliers[0], "bitbayes"))
    (above,), (below,) = of_class(root, "fill", "test"), of_class(root, "fill", "bitbayes")
    assert float(above.get("y") or 0) < charts.STRIP_HEIGHT / 2 <= float(below.get("y") or 0)
    assert float(above.get("x") or 0) > float(below.get("x") or 0)
    (line,) = of_class(root, "threshold")
    place = (root.get("data-places") or "").split()[KEPT_SHARES.index(0.95)]
    assert line.get("x1") == line.get("x2") == place


def test_seven_columns_have_seven_styles(audit: Audit) -> None:
    names = ("forest", "a b", "<c>")
    test = audit.test | dict.fromkeys(names, audit.test["temperature"])
    rankings = audit.rankings | dict.fromkeys(names, audit.rankings["plain"])
    root = drawn(charts.draw_reliability(replace(audit, test=test, rankings=rankings), "reliability"))
    kinds = ["plain", "temperature", "bitbayes", "other-1", "other-2", "other-3"]
    assert [len(of_class(root, "line", kind)) for kind in kinds] == [1] * 6


def test_each_style_of_the_palette_has_a_marker_of_its_own() -> None:
    styles = [*METHODS, *(f"other-{i}" for i, _ in enumerate(OTHERS, 1))]
    shapes = [drawn(f"<svg>{charts.marker(style, 10, 20, 5)}</svg>")[0] for style in styles]
    for shape in shapes:
        assert centre(shape) == pytest.approx((10, 20), abs=2)
    assert len({shape.get("points") for shape in shapes}) == len(styles)


def test_all_text_is_large_enough_on_a_phone() -> None:
    # 358 pixels are left for a picture on a phone of 390, and 288 on one of 320.
    assert 13 * 358 / charts.WIDTH >= 11
    assert 13 * 288 / charts.WIDTH >= 11
