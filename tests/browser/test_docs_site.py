"""The documentation site in a browser: its pages keep what every page must keep, and its search works."""

import functools
import http.server
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from browser.page_checks import check_page

ROOT = Path(__file__).parents[2]
# One of each kind: pictures, tables, cards, code, reference, the explorer in a frame, a notebook, thumbnails.
PAGES = (
    "gallery",
    "style",
    "index",
    "choose",
    "understand",
    "results/index",
    "deploy",
    "api",
    "explorer",
    "notebooks/digits_in_five_minutes",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the built site. Its search needs a server."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: `make docs` installs it")
    pages, folder = tmp_path_factory.mktemp("pages"), tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "scripts/build_site.py",
        "--builder",
        "mkdocs",
        "--pages",
        pages,
        "--output",
        folder,
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_keeps_what_every_page_must_keep(site, page, name):
    page.goto(f"{site}/{name}.html")
    check_page(page)


def test_no_code_is_cut(site, page):
    for name in ("start", "deploy", "regression", "notebooks/theory_on_the_toy"):
        page.goto(f"{site}/{name}.html")
        wide = "all => all.filter(each => each.scrollWidth > each.clientWidth).map(each => each.innerText)"
        assert page.locator("pre code").evaluate_all(wide) == [], name


def test_a_notebook_has_its_outputs_apart_from_its_code(site, page):
    page.goto(f"{site}/notebooks/digits_in_five_minutes.html")
    assert "stopped of 100" in page.locator(".output code").last.inner_text()
    assert "letters         stopped" not in page.locator(".highlight:not(.output) code").last.inner_text()
    assert page.locator("article img").count() == 2


def test_code_is_copied_without_prompts_and_outputs(site, chromium):
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{site}/start.html")
    page.get_by_role("button", name="Copy").nth(2).click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.rstrip().endswith('.mean():.0%}")') and ">>>" not in copied
    assert page.locator(".output button").count() == 0
    context.close()


def test_the_search_finds_a_page(site, page):
    page.goto(f"{site}/index.html")
    page.keyboard.press("/")
    page.keyboard.type("residual")
    found = page.locator(".md-search-result__link").first
    found.wait_for(state="visible")
    assert "residual" in found.inner_text().lower()
    assert not page.errors


def test_a_phone_can_reach_every_section(site, phone_page):
    phone_page.goto(f"{site}/index.html")
    phone_page.locator("label.md-header__button[for=__drawer]").tap()
    for name in ("How to", "Understand", "Evidence", "API"):
        assert phone_page.locator(".md-nav--primary").get_by_text(name, exact=True).first.is_visible()
