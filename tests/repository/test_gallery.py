"""The gallery: its page is that of its scripts, which are short, and its pictures are small."""

import importlib
import warnings

import pytest

gallery = importlib.import_module("make_gallery")
LARGEST, LONGEST = 60_000, 40  # bytes of a picture, lines of a script


def test_the_page_has_every_script_as_it_is():
    assert {path.stem for path in gallery.SCRIPTS.glob("*.py")} == set(gallery.NAMES)
    assert len(gallery.NAMES) == 12
    assert gallery.PAGE.read_text("utf-8") == gallery.page(), "make it again: python scripts/make_gallery.py"


@pytest.mark.parametrize("name", gallery.NAMES)
def test_a_script_is_short_and_its_picture_small(name):
    assert len((gallery.SCRIPTS / f"{name}.py").read_text("utf-8").splitlines()) <= LONGEST
    assert (gallery.PICTURES / f"{name}.png").stat().st_size < LARGEST
    title, text, code = gallery.parts(name)
    assert title and text and code.endswith("plt.show()")


@pytest.mark.slow
@pytest.mark.parametrize("name", gallery.NAMES)
def test_a_script_draws_its_picture(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the reader of pictures
        gallery.draw(name, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
