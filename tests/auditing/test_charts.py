"""The pictures: what is drawn, and where."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from bitbayes.auditing import charts
from bitbayes.auditing.findings import KEPT_SHARES, Audit

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
    # ECE: bitbayes 1 %, temperature 2 %, plain and energy 9 %. What gets through: 10 and 40 %.
    assert at["bitbayes"][0] < at["temperature"][0] < at["plain"][0]
    assert at["bitbayes"][1] > at["plain"][1]  # y grows downwards
    (curve,) = of_class(root, "curve")
    assert len(places(curve)) == len(of_class(root, "curve-dot")) == 3


def test_reliability_has_a_line_a_band_and_counts_for_each_method(audit: Audit) -> None:
    def bins(confidences: list[float]) -> dict[str, list[float | None]]:
        rest: list[float | None] = [None] * 12
        return {
            "confidence": [*rest, *confidences],
            "accuracy": [*rest, *confidences],
            "low": [*rest, *(c - 0.05 for c in confidences)],
            "high": [*rest, *(c + 0.02 for c in confidences)],
        }

    test = {
        m: replace(
            s, reliability=replace(s.reliability, count=[0] * 12 + [5, 20, 300], **bins([0.82, 0.9, 0.97]))
        )
        for m, s in audit.test.items()
    }
    root = drawn(charts.draw_reliability(replace(audit, test=test), "reliability"))
    (ideal,) = of_class(root, "ideal")
    assert audit.own_probabilities == ("plain", "temperature", "bitbayes")
    assert not of_class(root, "energy")  # it has the plain network's probabilities
    for method in audit.own_probabilities:
        (line,) = of_class(root, "line", method)
        assert len(places(line)) == 2  # the bin with five inputs is left out
        # On the diagonal, since accuracy and confidence are equal.
        slope = (float(ideal.get("y2") or 0) - float(ideal.get("y1") or 0)) / (
            float(ideal.get("x2") or 0) - float(ideal.get("x1") or 0)
        )
        (x0, y0), (x1, y1) = places(line)
        assert (y1 - y0) / (x1 - x0) == pytest.approx(slope, abs=0.01)
        (band,) = of_class(root, "band", method)
        assert len(places(band)) == 4
        bars = [each for each in of_class(root, "fill", method) if each.tag == "rect"]
        assert len(bars) == 3  # but it is counted
        heights = [float(bar.get("height") or 0) for bar in bars]
        assert heights == sorted(heights)


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


def test_seven_columns_have_seven_styles_and_two_bands(audit: Audit) -> None:
    names = ("forest", "a b", "<c>")
    test = audit.test | dict.fromkeys(names, audit.test["temperature"])
    rankings = audit.rankings | dict.fromkeys(names, audit.rankings["plain"])
    many = replace(audit, test=test, rankings=rankings)
    root = drawn(charts.draw_reliability(many, "reliability"))
    kinds = ["plain", "temperature", "bitbayes", "other-1", "other-2", "other-3"]
    assert [len(of_class(root, "line", kind)) for kind in kinds] == [1] * 6
    bars = [each.get("class") for each in root.iter() if (each.get("class") or "").startswith("bar-")]
    assert bars == ["bar-plain", "bar-bitbayes"]  # one bin each, so that a band has no width
    for style in charts.MARKERS:
        shape = drawn(f"<svg>{charts.marker(style, 10, 20, 5)}</svg>")[0]
        assert centre(shape) == pytest.approx((10, 20), abs=2)


def test_all_text_is_large_enough_on_a_phone() -> None:
    # 358 pixels are left for a picture on a phone of 390, and 288 on one of 320.
    assert 13 * 358 / charts.WIDTH >= 11
    assert 13 * 288 / charts.WIDTH >= 11
