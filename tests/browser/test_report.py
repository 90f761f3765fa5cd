"""The report of an audit in a browser: the slider, a phone, the dark, paper, and readers without script."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlparse

import pytest

from auditing.round_numbers import example, make_audit
from bitbayes.auditing import render_page
from bitbayes.auditing.findings import KEPT_SHARES
from browser.page_checks import check_axe, check_contrast, check_page, coloured, sized

ROOT = Path(__file__).parents[2]
# Large enough to be seen, in CSS pixels.
SMALLEST_TEXT = 11


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A report in which all that is possible is shown, and 96 of 100 cars get through if 96% are kept."""
    audit = make_audit()
    cars = audit.outliers[0]
    rising = replace(cars.passing["bitbayes"], share=KEPT_SHARES)
    cars = replace(cars, passing=cars.passing | {"bitbayes": rising})
    examples = [example("Test data", 1), *audit.examples, example("<ships>", None), example("noise", None)]
    path = tmp_path_factory.mktemp("report") / "report.html"
    replace(audit, outliers=[cars, *audit.outliers[1:]], examples=examples).save(path)
    return path.as_uri()


def open_details(page):
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")


def through(page, name):
    """What the page says about bitbayes and a set of outliers."""
    return page.locator("figure.set", has_text=name).locator(".through").inner_text()


def test_the_report_keeps_what_every_page_must(page, address):
    page.goto(address)
    open_details(page)
    check_page(page)


def test_the_slider_recomputes_what_gets_through(page, address):
    page.goto(address)
    assert through(page, "cars") == "95 of 100 get through at 95% kept"
    line = page.locator("figure.set", has_text="cars").locator(".threshold").first
    before = float(line.get_attribute("x1"))
    page.locator("#kept").focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert through(page, "cars") == "96 of 100 get through at 96% kept"
    assert page.locator("#kept-now").inner_text() == "96%"
    assert page.locator("#kept").get_attribute("aria-valuetext") == "96 per cent kept"
    assert float(line.get_attribute("x1")) < before
    assert "accept=0.96" in page.locator("pre").nth(1).inner_text()
    page.keyboard.press("ArrowRight")
    assert through(page, "cars").endswith("at 96.5% kept")
    page.keyboard.press("End")
    assert through(page, "cars") == "100 of 100 get through at 100% kept"
    plain = page.locator("figure.set", has_text="cars").locator(".strip-label").first
    assert plain.inner_text() == "Plain: 100 of 100, AUROC 80.0%"
    page.keyboard.press("Home")
    assert plain.inner_text() == "Plain: 40 of 100, AUROC 80.0%"
    assert through(page, "cars") == "50 of 100 get through at 50% kept"
    assert page.errors == []


@pytest.mark.slow
def test_examples_follow_the_slider(page, address):
    page.goto(address)
    bars = page.locator(".example").first.locator("small")
    assert [bars.nth(i).inner_text().split("– ")[1] for i in range(2)] == ["gets through", "refused"]
    page.locator("#kept").fill("55")
    # The plain network lets it through from 60% on, and bitbayes never.
    assert [bars.nth(i).inner_text().split("– ")[1] for i in range(2)] == ["refused", "refused"]


@pytest.mark.slow
def test_without_script_the_page_says_the_same(chromium, address):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert through(page, "cars") == "95 of 100 get through at 95% kept"
    assert not page.locator(".slider").is_visible()
    assert not page.locator(".copy").first.is_visible()
    context.close()


@pytest.mark.slow
def test_verdict_cards_and_advice_begin_on_the_first_screen(page, address):
    page.goto(address)
    for text in ("bitbayes helps:", "Test inputs × 2,000", "What to do", "bayes.tune(val_loader)"):
        box = page.get_by_text(text).first.bounding_box()
        assert box["y"] < 800, text
    assert page.evaluate("document.documentElement.scrollHeight") < 4500


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_no_text_is_too_small(page, address, width):
    page.goto(address)
    open_details(page)
    with sized(page, width):
        small = page.evaluate(
            """(smallest) => {
              const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
              for (let node; (node = walker.nextNode()); ) {
                const element = node.parentElement;
                if (!node.data.trim() || !element.checkVisibility()) continue;
                const scale = element.closest("svg")?.getScreenCTM().a ?? 1;
                const size = parseFloat(getComputedStyle(element).fontSize) * scale;
                if (size < smallest - 0.05) found.push(`${size.toFixed(1)}: ${node.data.trim()}`);
              }
              return found;
            }""",
            SMALLEST_TEXT,
        )
    assert small == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_legible_on_a_phone(page, address, width, scheme):
    page.goto(address)
    open_details(page)
    with sized(page, width), coloured(page, scheme):
        check_contrast(page)
        check_axe(page)
        for caption in page.locator("caption").all():
            assert caption.bounding_box()["height"] < 60  # one or two lines, and not a letter on each


@pytest.mark.slow
def test_on_paper_everything_is_open_and_no_table_is_split(page, address):
    page.goto(address)
    page.emulate_media(media="print")
    assert page.locator("table").count() == 10
    for table in page.locator("table").all():
        assert table.is_visible()
        assert table.evaluate("each => getComputedStyle(each).breakInside") == "avoid"
        assert table.bounding_box()["height"] < 900  # it fits on a page
    assert not page.locator(".slider").is_visible()
    assert 1 <= page.pdf(format="A4").count(b"/Type /Page\n") <= 6


@pytest.mark.slow
def test_lines_can_be_copied(chromium, address):
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(address)
    page.get_by_role("button", name="Copy").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").endswith("probs = bayes.predict_proba(x)")
    context.close()


@pytest.mark.slow
def test_a_report_without_outliers_keeps_it_too(page, tmp_path):
    bare = replace(
        make_audit(),
        outliers=[],
        groups={},
        prior_curve=None,
        scaled=[],
        ray=None,
        infinity=[],
        notes=[],
        examples=[],
    )
    path = tmp_path / "report.html"
    path.write_text(render_page(bare), encoding="utf-8")
    page.goto(path.as_uri())
    open_details(page)
    check_page(page)


@pytest.mark.slow
def test_the_screenshots_of_the_docs_are_taken_by_the_script(chromium, address, tmp_path):
    """In a process of its own, since two drivers of a browser do not share one."""
    report = Path(urlparse(address).path)
    command = [sys.executable, "scripts/make_report_screenshots.py", str(report), "--output", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    kept = {path.name for path in (ROOT / "docs" / "screenshots").iterdir()}
    assert {path.name for path in (tmp_path / "screenshots").iterdir()} == kept
    assert (tmp_path / "sample_report.html").read_text("utf-8") == report.read_text("utf-8")
    assert all(name in (ROOT / "docs" / "audit.md").read_text("utf-8") for name in kept)
