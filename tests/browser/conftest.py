"""Pages in a real browser: the fixtures `chromium` and `page`.

They need Chromium (Debian's package `chromium`, or another of `EXECUTABLES`) and the extra `browser`. A
machine without one of them skips these tests and says what is missing.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.page_checks import watch

EXECUTABLES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Nothing but the page itself: no first steps, no updates, no accounts.
ARGUMENTS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP = {"width": 1280, "height": 800}


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """A headless Chromium, one for all tests of a process."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install -e '.[browser]'"
    )
    with api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path  # what `playwright install chromium` downloads
        found = next(filter(None, map(shutil.which, EXECUTABLES)), own)
        if not Path(found).exists():
            pytest.skip("Chromium is not installed: make chromium, or apt-get install chromium")
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium) -> Iterator[object]:
    """An empty page, 1280 × 800 and light, in a profile of its own. See `page_checks.watch`."""
    context = chromium.new_context(viewport=DESKTOP, color_scheme="light")
    page = context.new_page()
    watch(page)
    yield page
    context.close()


@pytest.fixture
def phone_page(chromium) -> Iterator[object]:
    """An empty page on a phone, 390 × 844, that is touched and not clicked."""
    context = chromium.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, color_scheme="light"
    )
    page = context.new_page()
    watch(page)
    yield page
    context.close()
