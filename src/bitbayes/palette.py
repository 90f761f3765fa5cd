"""The colours and markers of all pictures and pages: one for each method, one hue for each class.

Methods differ by colour and by marker. On light and on dark pages the colours have a contrast of 4.5 for
text, and colour-blind people can tell them apart (the tests simulate it). In maps the hue is the class, and
the saturation the confidence: white is a blind guess.
"""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "CLASSES",
    "CLASS_MARKERS",
    "METHODS",
    "OTHERS",
    "Style",
    "css_variables",
    "map_colour",
    "map_colours",
    "method_styles",
    "rgb",
]


class Style(NamedTuple):
    """The colour on light pages and on paper, the one on dark pages, and matplotlib's name of the marker."""

    light: str
    dark: str
    marker: str


METHODS = {
    "plain": Style("#6c6e71", "#f2f3f4", "o"),
    "temperature": Style("#00503a", "#3cce91", "^"),
    "energy": Style("#8f5a00", "#f1a640", "*"),
    "bitbayes": Style("#1d63c0", "#559cf5", "s"),
    "paper": Style("#86106f", "#bd7fae", "D"),
}
# For methods of other names, in this order.
OTHERS = (
    Style("#b0391a", "#f58f74", "v"),
    Style("#3d1a78", "#c3a8f5", "P"),
    Style("#547300", "#b8d85a", "X"),
    Style("#00738a", "#6fd3e3", "<"),
    Style("#b3447e", "#f3a6cb", ">"),
)
# The classes in maps of the plane, and the markers of their points.
CLASSES = ("#e66101", "#5e3c99", "#009c7a", "#b8004f")
CLASS_MARKERS = ("o", "^", "s", "D")


def method_styles(names: Iterable[str]) -> dict[str, Style]:
    """Return the style of each method. Unknown names get the next of the others.

    >>> method_styles(["plain", "mine"])["mine"].light
    '#b0391a'
    """
    found, others = {}, 0
    for name in names:
        if name in METHODS:
            found[name] = METHODS[name]
        else:
            found[name], others = OTHERS[others % len(OTHERS)], others + 1
    return found


def css_variables() -> str:
    """Return the colours as variables of CSS: --plain, …, --other-1, …, --class-1, …; by the system's mode.

    >>> css_variables().splitlines()[0].startswith(":root { --plain: #6c6e71; ")
    True
    """
    named = METHODS | {f"other-{i}": style for i, style in enumerate(OTHERS, 1)}
    classes = " ".join(f"--class-{i}: {colour};" for i, colour in enumerate(CLASSES, 1))
    light = " ".join(f"--{name}: {style.light};" for name, style in named.items())
    dark = " ".join(f"--{name}: {style.dark};" for name, style in named.items())
    return (
        f":root {{ {light} {classes} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )


def map_colour(label: int, confidence: float, classes: int) -> tuple[float, float, float]:
    """Return the colour of a point in a map, as red, green and blue from 0 to 1.

    It is white at a confidence of 1/k, and that of the class at 1.

    >>> map_colour(0, 0.5, 2)
    (1.0, 1.0, 1.0)
    """
    share = (confidence - 1 / classes) / (1 - 1 / classes)
    red, green, blue = rgb(CLASSES[label % len(CLASSES)])
    return 1 - share * (1 - red), 1 - share * (1 - green), 1 - share * (1 - blue)


def map_colours(classes: int) -> list[list[tuple[float, float, float]]]:
    """Return 256 colours for each class, those of `map_colour` at confidences from 1/k to 1.

    >>> len(map_colours(3)), map_colours(3)[0][0]
    (3, (1.0, 1.0, 1.0))
    """
    confidences = [1 / classes + (1 - 1 / classes) * step / 255 for step in range(256)]
    return [[map_colour(label, each, classes) for each in confidences] for label in range(classes)]


def rgb(colour: str) -> tuple[float, float, float]:
    """Return red, green and blue of "#rrggbb", from 0 to 1."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue
