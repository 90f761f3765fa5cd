import base64
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from bitbayes.auditing import render_page, summarise, table_sections
from bitbayes.auditing.findings import Audit

VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Collects tags and text, and insists that what is opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def text(audit: Audit) -> str:
    return render_page(audit)


def test_the_page_has_the_sentences_the_numbers_and_the_notes(audit: Audit, text: str) -> None:
    page = Reader(text)
    for sentence in summarise(audit):
        assert sentence in page.text
    for section in table_sections(audit):
        assert section.title in page.text
        for row in section.rows:
            assert row.label in page.text
    assert "A note of <importance>" in page.text
    assert "temperature of 1.75" in page.text
    assert "prior_variance=12.5" in page.text
    assert "finished 2020-02-02 02:02:02 UTC" in page.text
    best = [attributes for tag, attributes in page.tags if tag == "td" and attributes.get("class") == "best"]
    assert len(best) == sum(sum(row.best) for section in table_sections(audit) for row in section.rows)


def test_the_page_loads_nothing_and_runs_nothing(text: str) -> None:
    page = Reader(text)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object"}
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "data"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"https?:|@import|url\(", text)


def test_every_picture_is_sound_and_described(text: str) -> None:
    pictures = [attributes for tag, attributes in Reader(text).tags if tag == "img"]
    assert len(pictures) == 7  # far away, three reliability diagrams, three sets of histograms
    for picture in pictures:
        kind, _, data = (picture["src"] or "").partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert ET.fromstring(base64.b64decode(data)).tag.endswith("svg")
    alts = [picture["alt"] or "" for picture in pictures]
    assert alts[0] == (
        "Mean confidence as test inputs are multiplied by 1 to 10,000: Plain from 90.0 to 80.0 %, "
        "Temperature from 90.0 to 80.0 %, Bayesian from 90.0 to 80.0 %."
    )
    assert alts[1] == "Reliability diagram, Plain: mean confidence 99.0 %, right 90.0 %."
    assert alts[6] == (
        "Histograms of confidence, Bayesian; means: test data 90.0 %, cars 40.0 %, <ships> 50.0 %, "
        "Uniform noise 30.0 %."
    )


def test_the_same_numbers_give_the_same_page(audit: Audit, text: str) -> None:
    assert render_page(audit) == text


def test_a_page_without_outliers_and_rays(audit: Audit) -> None:
    page = Reader(render_page(replace(audit, outliers=[], ray=None, notes=[])))
    assert "Far away" not in page.text
    assert "not wholly new" not in page.text
    assert [tag for tag, _ in page.tags].count("img") == 6


def test_any_name_can_be_drawn(audit: Audit) -> None:
    names = ["a" * 300, "$x^2", "日本 & <b>", r"\frac{"]
    outliers = [replace(audit.outliers[0], name=name) for name in names]
    page = Reader(render_page(replace(audit, outliers=outliers)))
    assert all(name in page.text for name in names)


def test_limits_are_shown_of_each_class_or_of_those_with_the_largest(audit: Audit, text: str) -> None:
    assert text.count("<td>50</td><td>62.5</td><td>72.5</td>") == 4
    many = [replace(audit.infinity[0], label=label, largest=label / 100) for label in range(30)]
    page = render_page(replace(audit, infinity=many))
    assert "the 20 of 30 classes with the largest limits" in page
    assert "<tr><td>10</td>" in page and "<tr><td>9</td>" not in page
    assert "tends to as" not in render_page(replace(audit, infinity=[]))
