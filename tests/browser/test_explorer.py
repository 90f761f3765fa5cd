"""The explorer in a browser: its steps, both scenes, links, mouse, touch and keyboard.

`tests/explorer/test_mathematics.py` and `test_digits.py` compare its numbers with the library's.
"""

import math
import re

import pytest

from bitbayes.explorer import render_explorer
from bitbayes.explorer.numbers import shipped_numbers
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
COLUMNS = ("accuracy", "data", "border", "limit")
# A link as somebody may have got it.
LINK = (
    "#scene=plane&toy=gaussians-4&step=3&left=temperature&split=37&zoom=0.7123456789&scaling=0.25"
    "&temperature=-0.1&prior=2.5&residual=-0.5&kernel=near&levels=input,classes&angle=211&mode=add"
    "&added=1.5,-2.25,30,4e-3&image=7&rotation=-33&blur=1.25&bright=0.5&along=blur"
)


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


@pytest.fixture
def digits(page, address):
    """The page with the scene of digits."""
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{address}#scene=digits")
    settle(page)
    return page


def settle(page):
    """Wait until nothing moves, the map has been drawn, and the line for screen readers has been written."""
    page.wait_for_function("() => !motion && !moving && !waiting && !telling")


def state(page):
    return page.evaluate("() => ({ ...state })")


def numbers(page):
    """The two rows of the table, in percent: those of the left side and of bitbayes."""
    rows = page.eval_on_selector_all(
        "#numbers tr",
        "rows => rows.map(row => [...row.querySelectorAll('td')].map(each => each.textContent))",
    )
    return [dict(zip(COLUMNS, (float(each.removesuffix("%")) for each in row), strict=True)) for row in rows]


def click(page, *ids):
    for id in ids:
        page.click(f"#{id}")
    settle(page)


def test_the_explorer_opens(explorer):
    assert explorer.inner_text("#step-title") == STEPS[0]
    plain, bayes = numbers(explorer)
    assert plain["accuracy"] == bayes["accuracy"] > 90 and plain["data"] > 90
    painted = "() => new Set(brush.getImageData(0, 0, canvas.width, canvas.height).data).size"
    assert explorer.evaluate(painted) > 50
    explorer.check("input[value=digits]")
    settle(explorer)
    assert explorer.inner_text("#says-bitbayes") == "3" and "digit 3" in explorer.inner_text("#digit-state")
    check_console(explorer)
    check_loads_nothing(explorer)
    check_width(explorer)


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
        before = page.inner_text("#step-text")
        click(page, "show")
        assert page.inner_text("#step-text") != before  # it follows the state
        return numbers(page)

    plain, bayes = show()
    assert plain["data"] > 90 and plain["border"] > 95 and plain["limit"] == 100
    assert bayes["border"] < blind + 10 and bayes["limit"] == blind and bayes["data"] > 90
    assert f"{bayes['border']:.1f}%" in page.inner_text("#step-text")
    click(page, "next")
    scaled, _ = show()
    assert scaled["data"] < 75 and scaled["border"] > 95 and scaled["limit"] == 100
    click(page, "next")
    narrow = numbers(page)[1]["limit"]
    _, bayes = show()
    assert bayes["limit"] < narrow <= 100 and bayes["border"] < 80
    click(page, "next")
    before = numbers(page)[1]
    _, bayes = show()
    assert bayes["limit"] == blind and bayes["border"] < blind + 10 < before["border"]
    assert bayes["data"] > before["data"] - 2
    click(page, "next")
    before = numbers(page)[1]
    _, bayes = show()
    assert bayes["limit"] == blind and bayes["border"] > before["border"]
    assert len(state(page)["added"]) == 24
    click(page, "next")
    assert tuple(seen) == STEPS and page.inner_text("#step-title") == STEPS[0]
    click(page, "next", "back")
    assert page.inner_text("#step-title") == STEPS[0]


@pytest.mark.slow
@pytest.mark.parametrize("step", range(5))
def test_every_step_is_sound_in_light_in_dark_and_at_320(explorer, step):
    click(explorer, *["next"] * step, "show")
    explorer.click("summary")
    check_page(explorer)


# Motion ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_zooms_out_by_itself_once(page, address):
    page.goto(address)
    page.wait_for_function("() => 0 < state.zoom && state.zoom < 2")
    settle(page)
    assert state(page)["zoom"] == 2
    click(page, "show", "next", "back")
    assert state(page)["zoom"] == 0
    check_console(page)


@pytest.mark.slow
@pytest.mark.parametrize("touch", ["mouse", "keyboard"])
def test_any_touch_stops_it(page, address, touch):
    page.goto(address)
    page.wait_for_function("() => state.zoom > 0")
    if touch == "mouse":
        page.click("#step-title")
    else:
        page.keyboard.press("Tab")
    settle(page)
    assert 0 < state(page)["zoom"] < 2


@pytest.mark.slow
def test_nothing_moves_for_those_who_asked_for_less_motion(explorer):
    explorer.wait_for_timeout(500)
    assert state(explorer)["zoom"] == 0


@pytest.mark.slow
def test_steps_move(page, address):
    page.goto(address)
    page.wait_for_function("() => state.zoom > 0")
    click(page, "next")
    page.click("#show")
    page.wait_for_function("() => 0 < state.scaling && state.scaling < 1")
    settle(page)
    assert state(page)["scaling"] == 1 and state(page)["zoom"] == 3


# Links ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_link_restores_the_state_exactly(page, address):
    page.goto(address + LINK)
    settle(page)
    found = state(page)
    assert found["zoom"] == 0.7123456789 and found["levels"] == ["input", "classes"]
    assert found["added"] == [1.5, -2.25, 30, 0.004] and found["toy"] == "gaussians-4"
    assert page.locator("#points button").count() == 4 / 2
    pixels = "() => canvas.toDataURL()"
    text, picture, link = (
        page.inner_text("#state"),
        page.evaluate(pixels),
        page.evaluate("() => location.href"),
    )
    page.goto("about:blank")
    page.goto(link)
    settle(page)
    assert state(page) == found and page.inner_text("#state") == text
    assert page.evaluate(pixels) == picture and page.evaluate("() => location.href") == link
    check_console(page)


@pytest.mark.slow
def test_the_address_follows_the_state(explorer, address):
    explorer.context.grant_permissions(["clipboard-read", "clipboard-write"])
    explorer.focus("#angle")
    explorer.keyboard.press("ArrowUp")
    click(explorer, "add", "copy")
    assert explorer.inner_text("#copied") == "Copied."
    link = explorer.evaluate("() => navigator.clipboard.readText()")
    assert link.startswith(address) and "angle=36" in link
    found = state(explorer)
    click(explorer, "clear", "next")
    explorer.evaluate("(link) => { location.hash = new URL(link).hash; }", link)  # pasted in the same tab
    explorer.wait_for_function("() => state.added.length === 2")
    settle(explorer)
    assert state(explorer) == found


@pytest.mark.slow
def test_a_link_that_makes_no_sense_changes_nothing(explorer, page, address):
    start = state(explorer)
    wrong = (
        "#scene=moon&toy=__proto__&step=1e9&zoom=NaN&split=Infinity&prior=&angle=-5&added=1,2,x&levels=none"
        "&image=2.5&nothing=1&left=%3Cb%3E"
    )
    page.goto("about:blank")
    page.goto(address + wrong)
    settle(page)
    found = state(page)
    assert found["step"] == 4 and found["angle"] == 0 and found["image"] in (2, 3) and found["levels"] == []
    for key in ("scene", "toy", "zoom", "split", "added", "left"):
        assert found[key] == start[key], key
    check_console(page)


# The divider, levels and kernel ---------------------------------------------------------------------------


def colour(page, x, y):
    """The colour of the map at a share of its width and height."""
    ask = (
        """([x, y]) => [...brush.getImageData(x * canvas.width, y * canvas.height, 1, 1).data].slice(0, 3)"""
    )
    return page.evaluate(ask, [x, y])


@pytest.mark.slow
def test_the_divider_is_dragged(explorer):
    click(explorer, "show")
    assert min(colour(explorer, 0.6, 0.9)) > 240  # bitbayes: white
    box, knob = explorer.locator("#map").bounding_box(), explorer.locator(".knob").bounding_box()
    explorer.mouse.move(knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2)
    explorer.mouse.down()
    explorer.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 100, steps=3)
    explorer.mouse.up()
    explorer.mouse.move(box["x"], box["y"])
    settle(explorer)
    assert abs(state(explorer)["split"] - 80) < 1
    assert min(colour(explorer, 0.6, 0.9)) < 100  # plain: saturated


@pytest.mark.slow
def test_the_divider_is_a_slider_for_the_keyboard(explorer):
    explorer.focus("#divider")
    values = []
    for key in ("ArrowRight", "ArrowUp", "PageUp", "ArrowLeft", "ArrowDown", "PageDown", "End", "Home"):
        explorer.keyboard.press(key)
        settle(explorer)
        values.append(explorer.get_attribute("#divider", "aria-valuenow"))
    assert values == ["52", "54", "64", "62", "60", "50", "100", "0"]
    assert explorer.get_attribute("#divider", "aria-valuetext") == "0% Plain, 100% bitbayes"


@pytest.mark.slow
def test_levels_and_kernel_change_the_residual(explorer):
    click(explorer, "show")
    full = numbers(explorer)[1]
    for name in ("input", "2", "head"):
        explorer.uncheck(f"input[name=levels][value='{name}']")
    settle(explorer)
    assert numbers(explorer)[1]["border"] > full["border"]
    assert "at: classes" in explorer.inner_text("#state")
    explorer.uncheck("input[name=levels][value=classes]")
    settle(explorer)
    without = numbers(explorer)[1]
    assert without["limit"] > full["limit"] and "at: no level" in explorer.inner_text("#state")
    click(explorer, "tuned")
    assert numbers(explorer)[1] == full
    explorer.check("input[name=kernel][value=near]")
    settle(explorer)
    near = numbers(explorer)[1]
    assert full["border"] <= near["border"] < without["border"] and near["limit"] == full["limit"]
    click(explorer, "tuned")
    assert state(explorer)["kernel"] == "both"


@pytest.mark.slow
def test_tuned_values_are_inside_the_sliders_and_marked(explorer):
    for toy in shipped_numbers()["toys"]:
        explorer.check(f"input[value={toy['name']}]")
        explorer.check("input[value=temperature]")
        click(explorer, "tuned")
        for id, name in (("temperature", "temperature"), ("prior", "priorVariance"), ("scaling", "scaling")):
            low, high = (float(explorer.get_attribute(f"#{id}", end)) for end in ("min", "max"))
            tuned = math.log10(toy["tuned"][name])
            assert low < tuned < high
            mark, track = (explorer.locator(f"#{each}").bounding_box() for each in (f"{id}-mark", id))
            place = (mark["x"] + mark["width"] / 2 - track["x"] - 8) / (track["width"] - 16)
            assert math.isclose(place, (tuned - low) / (high - low), abs_tol=0.01)
        assert math.isclose(10 ** state(explorer)["prior"], toy["tuned"]["priorVariance"], rel_tol=1e-9)


# Mouse, touch and keyboard --------------------------------------------------------------------------------


def place(page, x, y):
    """Where a point of the plane is in the window."""
    at = page.evaluate("([x, y]) => toScreen([x, y], canvas.getBoundingClientRect().width)", [x, y])
    box = page.locator("#map").bounding_box()
    return box["x"] + at[0], box["y"] + at[1]


@pytest.mark.slow
def test_the_ray_is_dragged(explorer):
    alpha = "() => finalRegion(theToy(), direction()).alpha"
    first = explorer.evaluate(alpha)
    explorer.mouse.move(*place(explorer, 1.0, 1.0))
    explorer.mouse.down()
    explorer.mouse.move(*place(explorer, 0.0, 1.5), steps=4)
    explorer.mouse.move(*place(explorer, -1.0, 0.0), steps=4)
    explorer.mouse.up()
    explorer.mouse.move(*place(explorer, 1.0, -1.0))  # the button is up: the ray stays
    settle(explorer)
    assert abs(state(explorer)["angle"] - 180) <= 1
    assert explorer.evaluate(alpha) != first
    assert re.search(r"On the ray at 1(79|80|81)°", explorer.inner_text("#state"))
    assert state(explorer)["added"] == []


@pytest.mark.slow
def test_a_click_adds_a_point_and_a_drag_moves_it(explorer):
    click(explorer, *["next"] * 4)
    before = explorer.evaluate("() => [...posterior.inputValues]")
    explorer.mouse.click(*place(explorer, 2.0, -3.0))
    settle(explorer)
    x, y = state(explorer)["added"]
    assert math.isclose(x, 2.0, abs_tol=0.1) and math.isclose(y, -3.0, abs_tol=0.1)
    one = explorer.evaluate("() => [...posterior.inputValues]")
    assert sum(one) > sum(before)
    assert "1 added point." in explorer.inner_text("#state")
    explorer.mouse.move(*place(explorer, x, y))
    explorer.mouse.down()
    explorer.mouse.move(*place(explorer, 5.0, 4.0), steps=5)
    explorer.mouse.up()
    settle(explorer)
    x, y = state(explorer)["added"]
    assert math.isclose(x, 5.0, abs_tol=0.1) and math.isclose(y, 4.0, abs_tol=0.1)
    assert explorer.evaluate("() => [...posterior.inputValues]") != one
    click(explorer, "clear")
    assert state(explorer)["added"] == []
    assert explorer.evaluate("() => [...posterior.inputValues]") == before


@pytest.mark.slow
def test_there_is_an_end_to_adding_points(page, address):
    points = ",".join(["1,1"] * 99)
    page.goto(f"{address}#mode=add&added={points}")
    settle(page)
    for x in (0.0, 1.5):
        page.mouse.click(*place(page, x, 1.2))
        settle(page)
    assert len(state(page)["added"]) == 200 and "no more fit" in page.inner_text("#state")


@pytest.mark.slow
def test_a_finger_turns_the_ray_moves_the_divider_and_adds_points(phone_page, address):
    phone_page.emulate_media(reduced_motion="reduce")
    phone_page.goto(address)
    settle(phone_page)
    phone_page.locator("#map").scroll_into_view_if_needed()
    phone_page.touchscreen.tap(*place(phone_page, 0.0, 1.5))
    settle(phone_page)
    assert abs(state(phone_page)["angle"] - 90) <= 2
    knob, box = (phone_page.locator(each).bounding_box() for each in (".knob", "#map"))
    fingers = phone_page.context.new_cdp_session(phone_page)
    x, y = knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2
    for kind, at in (("touchStart", x), ("touchMove", x - 20), ("touchMove", box["x"] + box["width"] / 4)):
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": at, "y": y}]})
    fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    settle(phone_page)
    assert abs(state(phone_page)["split"] - 25) < 2
    phone_page.locator("input[value=add]").check()
    phone_page.locator("#map").scroll_into_view_if_needed()
    phone_page.touchscreen.tap(*place(phone_page, 1.0, 1.0))
    settle(phone_page)
    assert len(state(phone_page)["added"]) == 2
    check_page(phone_page)


def tab_to(page, id):
    """By the Tab key alone, as far as it takes."""
    for _ in range(60):
        if page.evaluate("() => document.activeElement.id || document.activeElement.value") == id:
            # What has the focus is seen, and shows that it has it.
            assert page.evaluate("() => document.activeElement.matches(':focus-visible')")
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the Tab key does not reach {id}")


@pytest.mark.slow
def test_everything_can_be_done_with_the_keyboard(explorer):
    tab_to(explorer, "next")
    for _ in range(2):
        explorer.keyboard.press("Enter")
    settle(explorer)
    assert explorer.inner_text("#step-title") == STEPS[2]
    assert explorer.evaluate("() => document.activeElement.id") == "next"
    tab_to(explorer, "plain")
    explorer.keyboard.press("ArrowRight")
    tab_to(explorer, "prior")
    explorer.keyboard.press("ArrowRight")
    tab_to(explorer, "residual")
    explorer.keyboard.press("End")
    tab_to(explorer, "both")
    explorer.keyboard.press("ArrowRight")
    tab_to(explorer, "head")
    explorer.keyboard.press("Space")
    tab_to(explorer, "angle")
    for _ in range(5):
        explorer.keyboard.press("ArrowUp")
    tab_to(explorer, "add")
    explorer.keyboard.press("Space")
    settle(explorer)
    tab_to(explorer, "zoom")
    explorer.keyboard.press("End")
    settle(explorer)
    found = state(explorer)
    assert found["zoom"] == 3 and found["left"] == "temperature" and found["angle"] == 40
    assert found["residual"] == 3 and found["kernel"] == "near"
    assert found["levels"] == ["input", "2", "classes"]
    assert math.isclose(found["prior"], 0.05) and len(found["added"]) == 2
    assert "zoom ×1,000" in explorer.inner_text("#state")
    tab_to(explorer, "clear")
    explorer.keyboard.press("Enter")
    settle(explorer)
    assert state(explorer)["added"] == []
    assert explorer.evaluate("() => document.activeElement.id") == "add"


@pytest.mark.slow
def test_added_points_are_moved_and_removed_with_the_keyboard(explorer):
    click(explorer, "add")
    x, y = state(explorer)["added"]
    explorer.focus("#angle")
    explorer.keyboard.press("ArrowUp")
    click(explorer, "add")
    points = explorer.locator("#points button")
    assert points.count() == 2
    assert re.match(r"Added point 1 of 2, at [\d.]+, [\d.]+\.", points.first.get_attribute("aria-label"))
    points.first.focus()
    for key in ("ArrowLeft", "ArrowDown", "ArrowDown"):
        explorer.keyboard.press(key)
    settle(explorer)
    moved = state(explorer)["added"]
    assert moved[0] < x and math.isclose(y - moved[1], 2 * (x - moved[0]), rel_tol=0.05)
    explorer.keyboard.press("Delete")
    settle(explorer)
    assert len(state(explorer)["added"]) == 2
    assert points.first.evaluate("(point) => point === document.activeElement")
    explorer.keyboard.press("Delete")
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


# Digits ---------------------------------------------------------------------------------------------------


def confidences(page):
    ask = "() => Object.keys(DIGIT_METHODS).map((method) => find(`sure-${method}`).textContent)"
    return [float(each.removesuffix("%")) for each in page.evaluate(ask)]


@pytest.mark.slow
def test_a_digit_is_changed_and_three_confidences_follow(digits):
    assert min(confidences(digits)) > 95
    tab_to(digits, "bright")
    digits.keyboard.press("End")
    settle(digits)
    plain, temperature, bayes = confidences(digits)
    assert plain == temperature == 100 and bayes < 15
    assert state(digits)["along"] == "bright" and "1,000 times as bright" in digits.inner_text("#digit-state")
    widths = digits.evaluate(
        "() => Object.keys(DIGIT_METHODS).map((method) => find(`bar-${method}`).style.width)"
    )
    assert [round(float(each.removesuffix("%")), 1) for each in widths] == [plain, temperature, bayes]
    click(digits, "digit-reset")
    assert min(confidences(digits)) > 95
    tab_to(digits, "rotation")
    digits.keyboard.press("Home")
    tab_to(digits, "blur")
    digits.keyboard.press("End")
    digits.keyboard.press("ArrowLeft")
    settle(digits)
    assert "rotated by -180°, blurred by 3.95 pixels" in digits.inner_text("#digit-state").replace("−", "-")
    check_console(digits)


@pytest.mark.slow
def test_the_digits_can_be_chosen_and_linked(digits):
    names = [each["name"] for each in shipped_numbers()["digits"]["images"]]
    for number, name in enumerate(names):
        digits.check(f"input[name=image][value='{number}']", force=True)
        settle(digits)
        assert f"Image: {name}, as it is." in digits.inner_text("#digit-state")
    assert len(set(names)) == len(names)
    digits.check("input[name=along][value=blur]")
    settle(digits)
    found, link = state(digits), digits.evaluate("() => location.href")
    digits.goto("about:blank")
    digits.goto(link)
    settle(digits)
    assert state(digits) == found and not digits.is_visible("#plane")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["", "&rotation=100&blur=1&along=blur", "&bright=3&along=bright&image=11"])
def test_the_digits_are_sound_in_light_in_dark_and_at_320(page, address, change):
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{address}#scene=digits{change}")
    settle(page)
    check_page(page)


@pytest.mark.slow
def test_the_chart_of_digits_is_the_confidence_at_each_place(digits):
    """The line and the bars show the same number."""
    digits.evaluate("() => { state.rotation = 60; redraw(); }")
    settle(digits)
    steps = digits.evaluate("() => CHART_STEPS")
    place = round((60 + 180) / 360 * steps)
    lines = digits.evaluate("() => Object.values(chartLines).map((values) => [...values])")
    assert [round(100 * values[place], 1) for values in lines] == pytest.approx(
        confidences(digits), abs=0.051
    )
