"""The checks find what they are for: a sound page passes, and each fault is named."""

import re

import pytest

from browser.page_checks import (
    check_axe,
    check_background,
    check_console,
    check_contrast,
    check_loads_nothing,
    check_page,
    check_pictures,
    check_width,
    coloured,
)

STYLE = """:root { color-scheme: light dark } body { margin: 1rem; background: Canvas; color: CanvasText }"""
SOUND = f"""<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>A page</title>
<style>{STYLE}</style></head><body><main><h1>A page</h1><p>Some <a href="#there">text</a>.</p>
<img alt="A dot" src="data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4=">
<div style="overflow-x: auto" tabindex="0"><div style="width: 900px">A wide table.</div></div>
<svg role="img" aria-label="A line" width="9" height="9"></svg>HERE</main></body></html>"""


def show(page, fault=""):
    page.set_content(SOUND.replace("HERE", fault))


def test_a_sound_page_passes(page):
    show(page)
    check_page(page)
    assert page.viewport_size == {"width": 1280, "height": 800}


@pytest.mark.slow
@pytest.mark.parametrize(
    "check, fault, named",
    [
        (check_pictures, '<img src="data:,">', "img"),
        (check_pictures, "<canvas id=map></canvas>", "canvas#map"),
        (check_pictures, "<svg><path/></svg>", "svg"),
        (check_contrast, '<p style="color: #888; background: #fff">Faint</p>', 'p "Faint": 3.54'),
        (check_contrast, '<p style="color: #000; background: #fff; opacity: .4">Faint</p>', 'p "Faint"'),
        (
            check_contrast,
            '<svg aria-hidden="false" aria-label="x"><text y="9" fill="#999">Faint</text></svg>',
            "Faint",
        ),
        (check_width, '<div id=wide style="width: 400px">Wide</div>', "div#wide"),
        (check_width, '<p style="white-space: nowrap">' + "long " * 30 + "</p>", "the page is"),
        (check_axe, '<button style="width: 30px; height: 30px"></button>', "button-name"),
        (check_axe, "<label>No field</label><input>", "label"),
        (check_console, "<script>console.error('lost')</script>", "lost"),
        (check_console, "<script>nothing.there</script>", "nothing is not defined"),
        (check_loads_nothing, '<img alt="" src="http://example.invalid/a.png">', "example.invalid"),
    ],
)
def test_each_fault_is_named(page, check, fault, named):
    show(page)
    check(page)
    show(page, fault)
    page.wait_for_timeout(50)
    with pytest.raises(AssertionError, match=re.escape(named)):
        check(page)


@pytest.mark.slow
def test_a_page_that_stays_light_in_the_dark_is_found(page):
    page.set_content("<body style='background: white; color: black'>Light</body>")
    with coloured(page, "dark"), pytest.raises(AssertionError, match=r"luminance 1\.00"):
        check_background(page, "dark")


@pytest.mark.slow
def test_text_that_is_lost_in_the_dark_is_found(page):
    page.set_content(f"<style>{STYLE}</style><p style='color: #333'>Lost</p>")
    check_contrast(page)
    with coloured(page, "dark"), pytest.raises(AssertionError, match="Lost"):
        check_contrast(page)
