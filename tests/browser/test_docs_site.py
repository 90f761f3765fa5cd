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
# One of each kind: pictures, tables, cards, code, reference, the explorer in a frame.
PAGES = ("index", "choose", "understand", "results/index", "deploy", "api", "explorer")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the built site. Its search needs a server."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: `make docs` installs it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
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
