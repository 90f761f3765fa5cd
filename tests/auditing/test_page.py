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
    words = " ".join(page.text.split())
    assert (
        "Temperature: temperature 1.75; bitbayes: prior variance 12.5, temperature 0.625, residual variance "
        "40, residual threshold 0.75; Paper’s objective: prior variance 2.5."
    ) in words
    assert "noise is not wholly new to it" in words
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
    assert len(pictures) == 9  # far away, four reliability diagrams, four sets of histograms
    for picture in pictures:
        kind, _, data = (picture["src"] or "").partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert ET.fromstring(base64.b64decode(data)).tag.endswith("svg")
    alts = [picture["alt"] or "" for picture in pictures]
    assert alts[0] == (
        "Mean confidence as test inputs are multiplied by 1 to 10,000: Plain from 90.0 to 80.0 %, "
        "Temperature from 90.0 to 80.0 %, bitbayes from 90.0 to 80.0 %, Paper’s objective from 90.0 to "
        "80.0 %."
    )
    assert alts[1] == "Reliability diagram, Plain: mean confidence 99.0 %, right 90.0 %."
    assert alts[7] == (
        "Histograms of confidence, bitbayes; means: test data 90.0 %, cars 40.0 %, <ships> 50.0 %, "
        "Uniform noise 30.0 %."
    )


def test_the_same_numbers_give_the_same_page(audit: Audit, text: str) -> None:
    assert render_page(audit) == text


def test_a_page_without_outliers_and_rays(audit: Audit) -> None:
    page = Reader(render_page(replace(audit, outliers=[], ray=None, notes=[])))
    assert "Far away" not in page.text
    assert "AUROC and FPR95 rank" not in page.text
    assert [tag for tag, _ in page.tags].count("img") == 8


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


def test_where_all_limits_are_blind_guesses_one_sentence_says_so(audit: Audit) -> None:
    guesses = [replace(row, mean=0.25, largest=0.25) for row in audit.infinity]
    page = Reader(render_page(replace(audit, infinity=guesses)))
    words = " ".join(page.text.split())
    assert "tends to 25.0 %, a blind guess, for each of 200 test inputs x" in words
    assert "Largest limit" not in words


def test_a_page_without_the_papers_objective(without_paper: Audit) -> None:
    page = Reader(render_page(without_paper))
    assert [tag for tag, _ in page.tags].count("img") == 7
    assert "Paper’s" not in page.text
    assert "wholly new" not in page.text
