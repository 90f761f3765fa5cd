"""Numbers and names as the report writes them."""

import math
import unicodedata
from collections.abc import Sequence

from bitbayes.auditing.findings import ADDED
from bitbayes.palette import OTHERS

METHOD_TITLES = {
    "plain": "Plain",
    "temperature": "Temperature",
    "energy": "Energy",
    "bitbayes": "bitbayes",
    "paper": "Paper’s objective",
}


def title_of(method: str) -> str:
    """Return the title of a column: that of the audit's own methods, and for all others their name.

    >>> title_of("plain"), title_of("my ensemble")
    ('Plain', 'my ensemble')
    """
    return METHOD_TITLES.get(method, method)


def styles(methods: Sequence[str], base: str) -> dict[str, str]:
    """Return the style of each method: its name in `bitbayes.palette`. The user's own are "other-1", ….

    >>> styles(["net", "energy", "forest", "ensemble"], "net")
    {'net': 'plain', 'energy': 'energy', 'forest': 'other-1', 'ensemble': 'other-2'}
    """
    found, others = {}, 0
    for method in methods:
        if method == base:
            found[method] = "plain"
        elif method in ADDED:
            found[method] = method
        else:
            found[method], others = f"other-{others % len(OTHERS) + 1}", others + 1
    return found


def printable(text: object) -> str:
    """Write a text on one line, with escapes for characters that may control a terminal or break an SVG.

    These are control characters, invisible ones (which can turn the direction of writing), and halves of
    surrogate pairs.

    >>> print(printable("red \\x1b[31m cars\\n\\u202eships"))
    red \\x1b[31m cars \\u202eships
    """
    line = " ".join(str(text).split())
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c
        for c in line
    )


def percent(rate: float) -> str:
    """Write a fraction in per cent, with one digit after the point.

    >>> percent(0.98251), percent(1.0)
    ('98.3', '100.0')
    """
    return f"{100 * rate:.1f}"


def per_hundred(rate: float) -> str:
    """Write a fraction as a number out of 100. Only exactly 0 and 1 are written as 0 and 100.

    >>> per_hundred(0.0), per_hundred(0.001), per_hundred(0.214), per_hundred(0.999), per_hundred(1.0)
    ('0', '<1', '21', '>99', '100')
    >>> per_hundred(0.005), per_hundred(0.125)  # halves go up, as in the page's script
    ('1', '13')
    """
    if 0 < rate < 0.005:
        return "<1"
    return ">99" if 0.995 <= rate < 1 else f"{math.floor(100 * rate + 0.5)}"


def write_chosen(chosen: dict[str, float]) -> str:
    """Write the numbers that a method chose. A residual without variance is left out.

    >>> write_chosen({"prior_variance": 0.5, "temperature": 0.9375})
    'prior variance 0.5, temperature 0.938'
    >>> write_chosen({"prior_variance": 0.5, "near_variance": 0.0, "beyond_variance": 0.0})
    'prior variance 0.5'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in chosen.items() if value)


def join_names(names: list[str]) -> str:
    """Write names as a list in a sentence.

    >>> join_names(["noise"]), join_names(["shoes", "letters", "noise"])
    ('noise', 'shoes, letters and noise')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
