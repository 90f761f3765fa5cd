import base64
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from bitbayes.auditing import GENERATOR, advise, render_page, table_sections
from bitbayes.auditing.findings import KEPT_SHARES, Audit, DataChecks, Promise
from bitbayes.auditing.table import detail_rows
from bitbayes.auditing.verdict import compare, write_headline

VOID = {"meta", "img", "br", "input"}
# Elements of SVG that the pictures close in their own tag.
CLOSED = {"circle", "line", "polygon", "polyline", "rect"}


class Reader(HTMLParser):
    """Collects tags and text, and insists that what is opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == []
        self.words = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h1", "h2"):
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in CLOSED
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            return
        self.text += data
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings[-1] += data

    def having(self, name: str) -> list[str]:
        """The values of an attribute, wherever it is."""
        return [attributes[name] or "" for _, attributes in self.tags if name in attributes]

    def count(self, tag: str) -> int:
        return [each for each, _ in self.tags].count(tag)


def apart(text: str) -> str:
    """The words of a page, with a space between two cells of a table."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


@pytest.fixture(scope="module")
def text(audit: Audit) -> str:
    return render_page(audit)


def test_verdict_numbers_and_advice_come_first(audit: Audit, text: str) -> None:
    page = Reader(text)
    assert page.headings == [
        write_headline(audit),
        "Normal inputs",
        "cars",
        "<ships>",
        "Uniform noise",
        "Test inputs × 2,000",
        "What to do",
        "Is it right as often as it claims?",
        "What if a person takes the least sure?",
        "What gets through?",
        "Inputs to look at",
        "Where is it worst?",
        "Far away from the data",
        "Details",
    ]
    for comparison in compare(audit):
        assert comparison.detail in page.words
    for advice in advise(audit):
        assert advice.text in page.words
        assert advice.code in page.text
    assert "energy, 80" in compare(audit)[1].rival and "Best other: energy, 80." in page.words


def test_where_bitbayes_does_not_help_the_reasons_follow_the_headline(audit: Audit) -> None:
    calibrated = replace(audit.test["plain"], ece=0.005)
    test = {method: replace(calibrated, against=each.against) for method, each in audit.test.items()}
    nothing = replace(audit, test=test, outliers=[], groups={}, prior_curve=None)
    words = Reader(render_page(nothing)).words
    assert "bitbayes does not help here: accuracy and calibration stay. Likely reason: the network" in words


def test_all_numbers_are_there_with_intervals_arrows_and_row_headers(audit: Audit, text: str) -> None:
    page = Reader(text)
    sections = table_sections(audit)
    rows = [row for section in sections for row in section.rows]
    for row in rows:
        assert row.label in page.text
        assert all(interval in page.text for interval in row.intervals)
    heads = [attributes for tag, attributes in page.tags if tag == "th" and attributes["scope"] == "row"]
    parts = len(audit.by_class) + len(audit.by_segment) + len(audit.scaled)
    assert len(heads) == len(rows) + parts + len(audit.infinity) + len(detail_rows(audit, "paper"))
    best = [attributes for tag, attributes in page.tags if tag == "td" and attributes.get("class") == "best"]
    assert len(best) == sum(sum(row.best) for row in rows)
    assert page.text.count("better than plain") == sum(row.changes.count("better") for row in rows)
    explained = 1  # above the tables
    assert page.text.count("worse than plain") - explained == sum(row.changes.count("worse") for row in rows)


def test_how_it_was_made_is_told(text: str) -> None:
    words = Reader(text).words
    for part in (
        "bitbayes audit zoo:animals --seed 7",
        "Temperature: temperature 1.75; bitbayes: prior variance 12.5, temperature 0.625, near variance "
        "0.75, beyond variance 40; Paper’s objective: prior variance 2.5.",
        "other noise than the noise that is scored here",
        "another class than the plain network for 3 of 400 test inputs",
        "Fitting takes 2.2 s (1.1 times a forward pass over the training data)",
        "12.0 seconds, finished 2020-02-02 02:02:02 UTC",
        "A note of <importance>",
    ):
        assert part in words


def test_the_numbers_can_be_taken_along_as_json(audit: Audit, text: str) -> None:
    (link,) = [a["href"] or "" for tag, a in Reader(text).tags if tag == "a" and "download" in a]
    kind, _, data = link.partition(",")
    assert kind == "data:application/json;base64"
    assert json.loads(base64.b64decode(data)) == audit.to_dict()


def test_the_page_loads_nothing(text: str) -> None:
    page = Reader(text)
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object"}
    for name in ("src", "href", "srcset", "data"):
        assert all(value.startswith("data:") for value in page.having(name))
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttp", text)


def test_a_report_is_known_by_its_head(text: str) -> None:
    assert GENERATOR in text[:1000]


def test_every_picture_is_described(text: str) -> None:
    page = Reader(text)
    for tag, attributes in page.tags:
        if tag == "img":
            assert attributes["alt"]
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or attributes["aria-label"]
    alts = page.having("aria-label")
    assert any("Plain: calibration error 9.0%, 40.0% get through" in alt for alt in alts)
    assert any("bitbayes: confidence 90.0%, accuracy 89.5%" in alt for alt in alts)
    assert any("Hand the least sure 5% to a person" in alt for alt in alts)
    assert any(
        "Mean confidence from δ = 1 to δ = 10,000: Plain falls from 90.0 to 80.0%" in alt for alt in alts
    )


def test_what_gets_through_is_written_for_readers_without_script(text: str) -> None:
    words = Reader(text).words
    assert words.count("10 of 100 get through at 95% kept Plain: 40 of 100, AUROC 80.0%") == 3
    assert "0 of 100 get through at 95% kept Plain: 100 of 100, AUROC 2.0%" in words
    assert 'class="slider" hidden' in text


def test_the_script_finds_the_numbers_for_each_share(audit: Audit, text: str) -> None:
    page = Reader(text)
    shares = [[float(each) for each in value.split()] for value in page.having("data-share")]
    assert len(shares) == 3 * len(audit.outliers)  # in the headline, and at each strip
    assert shares[0] == shares[2] == [0.1] * 100 + [1.0] and shares[1] == [0.4] * 100 + [1.0]
    places = [value.split() for value in page.having("data-places")]
    assert {len(each) for each in (*shares, *places)} == {len(KEPT_SHARES)}
    assert page.having("data-from") == ["0.6", ""] * 3


def test_the_script_does_not_round_a_few_to_none_or_most_to_all(audit: Audit) -> None:
    cars = audit.outliers[0]
    shares = [1 / 20_000] * (len(KEPT_SHARES) - 1) + [1 - 1 / 20_000]
    passing = cars.passing | {"bitbayes": replace(cars.passing["bitbayes"], share=shares)}
    page = Reader(render_page(replace(audit, outliers=[replace(cars, passing=passing)])))
    assert "<1 of 100 get through at 95% kept" in page.words
    assert {float(each) for each in page.having("data-share")[0].split()} == {0.00005, 0.99995}


def test_examples_are_images_or_values(audit: Audit, text: str) -> None:
    page = Reader(text)
    images = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    assert images == ["Test data: class 1", "cars"]
    assert "0.5, -2, … (12 numbers)" in page.words
    assert "Plain: class 3, 99.0% – gets through" in page.words
    assert "bitbayes: class 3, 25.0% – refused" in page.words
    features = [f"<feature {i}>" for i in range(12)]
    assert "<feature 0> 0.5 <feature 1> -2 …" in Reader(render_page(replace(audit, features=features))).words


def test_classes_and_segments_are_listed_the_worst_first(audit: Audit, text: str) -> None:
    words = apart(text)
    assert "By class" in words and "By site" in words
    assert "class 2 100 80.0 79.0–81.0 +10.0 ±4.0 too sure 6.0 class 0 290" in words
    assert "class 3 (too few to say) 10 50.0" in words
    assert "<north> 300 85.0" in words and 'segment="column"' not in words
    many = replace(audit, by_class=[replace(audit.by_class[0], name=f"kind {i}") for i in range(30)])
    words = Reader(render_page(many)).words
    assert "By class (10 of 30) the worst first" in words and "All classes" in words
    without = Reader(render_page(replace(audit, segment=None, by_segment=[]))).words
    assert 'bb.audit(…, segment="column") adds the same for a column of your data.' in without


def test_names_of_classes_are_used_everywhere(audit: Audit) -> None:
    names = ["<cat>", "dog & co", "eel", "fox"]
    limits = [replace(row, largest=0.7 + row.label / 100) for row in audit.infinity]
    missing = DataChecks(missing={"test": [0]})
    text = render_page(replace(audit, class_names=names, infinity=limits, checks=missing))
    words = apart(text)
    assert "Plain: fox, 99.0% – gets through" in words
    assert "No test input of <cat>: nothing is known about it." in words
    assert "<cat> 50 62.5 70.0 dog & co 50" in words  # the limits
    assert "<cat>" not in text


def test_what_refusing_scaled_inputs_costs_is_beside_their_accuracy(text: str) -> None:
    words = apart(text)
    assert "× 1.5 87.5 50.0 → 50.0 25.0 → 25.0 12.5 → 12.5 × 2,000 87.5" in words


def test_a_promise_is_made_on_named_data_or_not_at_all(audit: Audit, text: str) -> None:
    assert "The threshold was found on the 400 test inputs of this audit, which tuned nothing" in text
    assert "t = bayes.threshold(test_loader, risk=0.05)" in Reader(text).words
    none = replace(audit, promise=Promise(0.01, 0.95, 400, reason="some <reason>"))
    words = Reader(render_page(none)).words
    assert "At most 1% wrong answers cannot be promised" in words and "some <reason>." in words
    assert "test_loader" not in words
    assert "romise" not in Reader(render_page(replace(audit, promise=None))).words


def test_the_same_numbers_give_the_same_page(audit: Audit, text: str) -> None:
    assert render_page(audit) == text


def test_a_page_without_outliers_and_rays(bare: Audit) -> None:
    page = Reader(render_page(bare))
    assert page.headings[1:] == [
        "Normal inputs",
        "What to do",
        "Is it right as often as it claims?",
        "What if a person takes the least sure?",
        "Inputs to look at",
        "Where is it worst?",
        "Details",
    ]
    assert "Unfamiliar:" not in page.words
    assert "the wrong answers that it is surest of. An input" in page.words  # and nothing of outliers


def test_any_name_can_be_shown(audit: Audit) -> None:
    names = ["a" * 300, "$x^2", "日本 & <b>", r"\frac{", '"quoted"']
    outliers = [replace(audit.outliers[0], name=name) for name in names]
    groups = {"unfamiliar": replace(audit.groups["unfamiliar"], sets=names)}
    page = Reader(render_page(replace(audit, outliers=outliers, groups=groups)))
    assert all(name in page.text for name in names)


def test_limits_are_listed_unless_all_are_blind_guesses(audit: Audit) -> None:
    many = [replace(audit.infinity[0], label=label, largest=label / 100) for label in range(30)]
    names = [f"class {label}" for label in range(30)]
    words = Reader(render_page(replace(audit, infinity=many, class_names=names))).words
    assert "the 20 of 30 classes with the largest" in words
    assert "class 10" in words and "class 9 " not in words
    guesses = [replace(row, mean=0.25, largest=0.25) for row in audit.infinity]
    words = Reader(render_page(replace(audit, infinity=guesses))).words
    assert "tends to 25.0%, a blind guess, for each of 200 test inputs" in words
    assert "Largest limit" not in words
    assert "and the thick line is the certificate." in words
    without = [replace(row, alpha=None) for row in audit.infinity]
    words = Reader(render_page(replace(audit, infinity=without))).words
    assert "The ring above ∞ is the mean limit." in words
    assert "certificate" not in words


def test_a_page_without_the_papers_objective(without_paper: Audit) -> None:
    page = Reader(render_page(without_paper))
    assert "Paper’s objective" not in page.words.replace("is the paper’s objective", "")
    assert "other noise" not in page.words
