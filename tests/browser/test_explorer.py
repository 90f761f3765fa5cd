"""The explorer in a browser: its steps, mouse, touch and keyboard.

`tests/explorer/test_mathematics.py` compares its numbers with the library's.
"""

import math
import re
from itertools import pairwise

import pytest

from bitbayes.explorer import render_explorer
from bitbayes.toys import TOY_PROBLEMS
from browser.page_checks import check_console, check_loads_nothing, check_page, check_width

STEPS = (
    "Zoom out",
    "Temperature does not help",
    "Widen the prior",
    "Add the residual",
    "Add your own points",
)
NAMES = [make().name for make in TOY_PROBLEMS]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    file = tmp_path_factory.mktemp("explorer") / "explorer.html"
    file.write_text(render_explorer(), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def explorer(page, address):
    """The page, without motion: what a button sets is there at once."""
    page.emulate_media(reduced_motion="reduce")
    page.goto(address)
    settle(page)
    return page


def settle(page):
    """Wait until nothing moves, the map has been drawn, and the line for screen readers has been written."""
    page.wait_for_function("() => !motion && !moving && !waiting && !telling")


def state(page):
    return page.evaluate("() => ({ ...state, toy: state.toy.name })")


def share(page, id):
    return float(page.inner_text(f"#{id}").removesuffix("%"))


def click(page, *ids):
    for id in ids:
        page.click(f"#{id}")
    settle(page)


def test_the_explorer_opens(explorer):
    assert explorer.inner_text("#step-title") == STEPS[0]
    assert 50 <= share(explorer, "at-data") <= 100
    painted = "() => new Set(brush.getImageData(0, 0, canvas.width, canvas.height).data).size"
    assert explorer.evaluate(painted) > 50
    check_console(explorer)
    check_loads_nothing(explorer)
    check_width(explorer)


@pytest.mark.slow
def test_equal_steps_of_confidence_look_equal(explorer):
    """The stops of both colour maps are equally far apart in OKLab, to 6 %."""
    for stops in explorer.evaluate("() => Object.values(STOPS)"):
        gaps = [math.dist(one, other) for one, other in pairwise(stops)]
        assert max(gaps) / min(gaps) < 1.06
        lightness = [stop[0] for stop in stops]
        assert lightness in (sorted(lightness), sorted(lightness, reverse=True))


# The steps ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_five_steps_show_what_they_say(explorer):
    for name in NAMES:
        explorer.check(f"input[value={name}]")
        settle(explorer)
        click_through(explorer, 25.0 if name == "gaussians-4" else 50.0)
    check_console(explorer)


def click_through(page, blind):
    """All steps with "Show me": what the numbers then are, and that the first step follows the last."""
    seen = []

    def show():
        seen.append(page.inner_text("#step-title"))
        click(page, "show")
        return [share(page, id) for id in ("at-data", "at-border", "limit")]

    plain_at_data, plain_border, limit = show()
    assert plain_at_data > 90 and plain_border > 95 and limit == 100
    click(page, "next")
    at_data, border, limit = show()
    assert at_data < 75 and border > 95 and limit == 100
    click(page, "next")
    narrow = share(page, "limit")
    _, border, limit = show()
    assert limit < narrow <= 100 and border < 80
    click(page, "next")
    before = share(page, "at-data"), share(page, "at-border")
    at_data, border, limit = show()
    assert limit == blind and border < blind + 10 < before[1] and at_data > before[0] - 2
    click(page, "next")
    assert share(page, "at-data") > 90
    before = share(page, "at-border")
    _, border, limit = show()
    assert limit == blind and border > before and len(state(page)["added"]) == 24
    click(page, "next")
    assert tuple(seen) == STEPS and page.inner_text("#step-title") == STEPS[0]
    click(page, "next", "back")
    assert page.inner_text("#step-title") == STEPS[0]


@pytest.mark.slow
def test_steps_move_for_those_who_did_not_ask_for_less_motion(page, address):
    page.goto(address)
    settle(page)
    page.click("#show")
    page.wait_for_function("() => 0 < state.zoom && state.zoom < 2")
    settle(page)
    assert state(page)["zoom"] == 2
    check_console(page)


@pytest.mark.slow
@pytest.mark.parametrize("step", range(5))
def test_every_step_is_sound_in_light_in_dark_and_at_320(explorer, step):
    click(explorer, *["next"] * step, "show")
    explorer.click("summary")
    check_page(explorer)


# Mouse, touch and keyboard --------------------------------------------------------------------------------


def place(page, x, y):
    """Where a point of the plane is in the window."""
    at = page.evaluate("([x, y]) => toScreen([x, y], canvas.getBoundingClientRect().width)", [x, y])
    box = page.locator("#map").bounding_box()
    return box["x"] + at[0], box["y"] + at[1]


@pytest.mark.slow
def test_the_ray_is_dragged(explorer):
    first = share(explorer, "alpha")
    explorer.mouse.move(*place(explorer, 1.0, 1.0))
    explorer.mouse.down()
    explorer.mouse.move(*place(explorer, 0.0, 1.5), steps=4)
    explorer.mouse.move(*place(explorer, -1.0, 0.0), steps=4)
    explorer.mouse.up()
    explorer.mouse.move(*place(explorer, 1.0, -1.0))  # the button is up: the ray stays
    settle(explorer)
    assert abs(state(explorer)["angle"] - 180) <= 1
    assert share(explorer, "alpha") != first
    assert re.search(r"On the ray at 1(79|80|81)°", explorer.inner_text("#state"))
    assert state(explorer)["added"] == []


@pytest.mark.slow
def test_a_click_adds_a_point_and_updates_the_posterior(explorer):
    click(explorer, *["next"] * 4)
    before = explorer.evaluate("() => [...posterior.inputValues]")
    explorer.mouse.click(*place(explorer, 2.0, -3.0))
    settle(explorer)
    x, y = state(explorer)["added"]
    assert math.isclose(x, 2.0, abs_tol=0.1) and math.isclose(y, -3.0, abs_tol=0.1)
    assert sum(explorer.evaluate("() => [...posterior.inputValues]")) > sum(before)
    assert "1 added point." in explorer.inner_text("#state")
    click(explorer, "clear")
    assert state(explorer)["added"] == []
    assert explorer.evaluate("() => [...posterior.inputValues]") == before


@pytest.mark.slow
def test_a_finger_turns_the_ray_and_adds_points(phone_page, address):
    phone_page.emulate_media(reduced_motion="reduce")
    phone_page.goto(address)
    settle(phone_page)
    phone_page.locator("#map").scroll_into_view_if_needed()
    phone_page.touchscreen.tap(*place(phone_page, 0.0, 1.5))
    settle(phone_page)
    assert abs(state(phone_page)["angle"] - 90) <= 2
    phone_page.locator("input[value=add]").check()
    phone_page.locator("#map").scroll_into_view_if_needed()
    phone_page.touchscreen.tap(*place(phone_page, 1.0, 1.0))
    settle(phone_page)
    assert len(state(phone_page)["added"]) == 2
    check_page(phone_page)


@pytest.mark.slow
def test_everything_can_be_done_with_the_keyboard(explorer):
    def tab_to(id):
        """By the Tab key alone, as far as it takes."""
        for _ in range(40):
            if explorer.evaluate("() => document.activeElement.id || document.activeElement.value") == id:
                # What has the focus is seen, and shows that it has it.
                assert explorer.evaluate("() => document.activeElement.matches(':focus-visible')")
                return
            explorer.keyboard.press("Tab")
        raise AssertionError(f"the Tab key does not reach {id}")

    tab_to("next")
    for _ in range(2):
        explorer.keyboard.press("Enter")
    settle(explorer)
    assert explorer.inner_text("#step-title") == STEPS[2]
    assert explorer.evaluate("() => document.activeElement.id") == "next"
    tab_to("zoom")
    explorer.keyboard.press("End")
    tab_to("bitbayes")
    explorer.keyboard.press("ArrowLeft")
    explorer.keyboard.press("ArrowRight")
    tab_to("prior")
    explorer.keyboard.press("ArrowRight")
    tab_to("residual")
    explorer.keyboard.press("Home")
    tab_to("angle")
    for _ in range(5):
        explorer.keyboard.press("ArrowUp")
    tab_to("add")
    explorer.keyboard.press("Space")
    settle(explorer)
    found = state(explorer)
    assert found["zoom"] == 3 and found["method"] == "bitbayes" and found["angle"] == 40
    assert math.isclose(found["prior"], 0.05) and len(found["added"]) == 2
    assert "zoom ×1,000" in explorer.inner_text("#state")
    tab_to("clear")
    explorer.keyboard.press("Enter")
    settle(explorer)
    assert state(explorer)["added"] == []
    assert explorer.evaluate("() => document.activeElement.id") == "add"


@pytest.mark.slow
def test_sliders_say_their_value_in_words(explorer):
    click(explorer, "next", "next", "next", "show")
    spoken = {
        id: explorer.get_attribute(f"#{id}", "aria-valuetext")
        for id in ("zoom", "prior", "temperature", "residual", "angle")
    }
    assert spoken == {
        "zoom": "×10",
        "prior": "10",
        "temperature": "1",
        "residual": "as tuned",
        "angle": "35°",
    }
    click(explorer, "tuned")
    tuned = explorer.evaluate("() => state.toy.tuned.priorVariance")
    assert math.isclose(10 ** state(explorer)["prior"], tuned, rel_tol=1e-9)
