"""What every page of bitbayes must keep, as functions that take a page in a browser and raise if it does not.

    page.goto(path.as_uri())
    check_page(page)

`check_page` runs all of them. Each problem is named with the element that has it.
"""

from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
LOWEST_CONTRAST = 4.5
NARROWEST = 320
DARKEST_LIGHT, LIGHTEST_DARK = 0.5, 0.2  # of the background, as relative luminances
LOCAL = ("file:", "data:", "blob:", "about:", "http://127.0.0.1", "http://localhost")


def watch(page):
    """Keep what the page prints as an error and what it asks for: `page.errors` and `page.requested`."""
    page.errors, page.requested = [], []
    page.on("console", lambda line: line.type in ("error", "warning") and page.errors.append(line.text))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("request", lambda request: page.requested.append(request.url))


def check_page(page):
    """All checks, in light and in dark. The page is left as it was: its width, and light."""
    check_console(page)
    check_loads_nothing(page)
    check_pictures(page)
    check_width(page)
    for scheme in ("light", "dark"):
        with coloured(page, scheme):
            check_background(page, scheme)
            check_contrast(page)
            check_axe(page)
    check_console(page)


def check_console(page):
    """Neither an error nor a warning, printed or raised."""
    _expect_none("errors or warnings of the page", page.errors)


def check_loads_nothing(page):
    """Nothing comes from another machine."""
    _expect_none("requests", [url for url in page.requested if not url.startswith(LOCAL)])


def check_pictures(page):
    """Every picture has a text: `alt`, or a name for an SVG or a canvas. For decoration alt="" will do."""
    _expect_none("pictures without a text", _ask(page, "picturesWithoutText()"))


def check_contrast(page, lowest=LOWEST_CONTRAST):
    """Every text that is seen has that contrast to what is behind it, in the scheme that is on."""
    found = _ask(page, f"textsBelowContrast({lowest})")
    assert found["seen"] > 0, "the page shows no text"
    _expect_none(f"texts with a contrast below {lowest}", found["below"])


def check_width(page, width=NARROWEST):
    """At that width nothing reaches beyond the right edge, so that nobody scrolls sideways.

    What scrolls by itself, such as a wide table in a box of its own, may.
    """
    with sized(page, width):
        _expect_none(f"beyond the right edge at {width} pixels", _ask(page, "beyondTheRightEdge()"))


def check_background(page, scheme):
    """The background is light, or dark, as the reader asked."""
    luminance = _ask(page, "backgroundLuminance()")
    if scheme == "dark":
        assert luminance <= LIGHTEST_DARK, f"in dark mode the background has luminance {luminance:.2f}"
    else:
        assert luminance >= DARKEST_LIGHT, f"in light mode the background has luminance {luminance:.2f}"


def check_axe(page):
    """axe-core finds no violation."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    places = [", ".join(" ".join(map(str, node["target"])) for node in rule["nodes"]) for rule in found]
    _expect_none(
        "violations found by axe",
        [f"{rule['id']}: {rule['help']}: {place}" for rule, place in zip(found, places, strict=True)],
    )


@contextmanager
def coloured(page, scheme):
    """The page as a reader with that colour scheme sees it; afterwards it is light."""
    page.emulate_media(color_scheme=scheme)
    _settle(page)
    yield page
    page.emulate_media(color_scheme="light")
    _settle(page)


@contextmanager
def sized(page, width, height=800):
    """The page at that width; afterwards it has its own size again."""
    before = page.viewport_size
    page.set_viewport_size({"width": width, "height": height})
    _settle(page)
    yield page
    page.set_viewport_size(before)
    _settle(page)


def _expect_none(what, found):
    assert not found, f"{what}:\n" + "\n".join(found)


def _settle(page):
    """Wait until the page has been drawn twice and its transitions are over."""
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        ".then(() => Promise.allSettled(document.getAnimations().map(each => each.finished)))"
    )


def _ask(page, question):
    return page.evaluate(f"() => {{ {SCRIPT}\nreturn {question}; }}")
