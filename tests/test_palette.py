import itertools
import re

import pytest

from bitbayes.palette import CLASSES, METHODS, OTHERS, css_variables, map_colour, method_styles, rgb

# The backgrounds of pages and of boxes on them, and how much brighter or darker text has to be (WCAG 2, AA).
BACKGROUNDS = {"light": ("#ffffff", "#f0f1ef"), "dark": ("#121416", "#24282c")}
CONTRAST = 4.5
# How colours look without one kind of cones: Machado, Oliveira and Fernandes (2009), on linear RGB.
SIGHTS = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
DIFFERENCE = 10.0  # in CIELAB: clearly different side by side


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def linear(colour):
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(colour)]


def luminance(colour):
    return times(XYZ, linear(colour))[1]


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def cielab(colour, sight):
    seen = [min(max(c, 0.0), 1.0) for c in times(SIGHTS[sight], linear(colour))]
    x, y, z = (a / sum(row) for a, row in zip(times(XYZ, seen), XYZ, strict=True))
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one, other):
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5


@pytest.mark.parametrize("mode", BACKGROUNDS)
def test_text_in_each_colour_can_be_read(mode):
    for style in (*METHODS.values(), *OTHERS):
        for background in BACKGROUNDS[mode]:
            assert contrast(getattr(style, mode), background) >= CONTRAST, (style, background)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("mode", BACKGROUNDS)
def test_methods_can_be_told_apart(mode, sight):
    seen = {name: cielab(getattr(style, mode), sight) for name, style in METHODS.items()}
    for one, other in itertools.combinations(seen, 2):
        assert distance(seen[one], seen[other]) >= DIFFERENCE, (one, other)


@pytest.mark.parametrize("sight", SIGHTS)
def test_classes_can_be_told_apart(sight):
    seen = [cielab(colour, sight) for colour in CLASSES]
    for one, other in itertools.combinations(seen, 2):
        assert distance(one, other) >= DIFFERENCE, (one, other)


def test_no_two_methods_have_the_same_marker():
    markers = [style.marker for style in (*METHODS.values(), *OTHERS)]
    assert len(set(markers)) == len(markers)


def test_unknown_methods_get_the_others_in_their_order():
    found = method_styles(["mine", "bitbayes", "yours"])
    assert list(found.values()) == [OTHERS[0], METHODS["bitbayes"], OTHERS[1]]
    assert method_styles(str(i) for i in range(6))["5"] == OTHERS[0]


def test_pages_have_each_colour_in_both_modes():
    light, dark = css_variables().splitlines()
    for name, style in METHODS.items():
        assert f"--{name}: {style.light};" in light and f"--{name}: {style.dark};" in dark
    names = re.findall(r"--([\w-]+):", dark)
    assert names == [*METHODS, *(f"other-{i}" for i in range(1, 6))]


def test_a_map_is_white_at_a_guess_and_has_the_class_s_hue_at_one():
    assert map_colour(1, 0.25, 4) == (1.0, 1.0, 1.0)
    assert map_colour(1, 1.0, 4) == pytest.approx(rgb(CLASSES[1]))
    half = [(1 + c) / 2 for c in rgb(CLASSES[0])]
    assert map_colour(0, 0.75, 2) == pytest.approx(half)
