"""What all pictures share: axes to draw on, and a colour for each method."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.palette import METHODS

# On white paper; `bitbayes.palette` also has those of dark pages.
COLOURS = {name: style.light for name, style in METHODS.items()}
TEXT_COLOUR, FAINT_COLOUR = "#333333", "#8a8a8a"
BAND_OPACITY = 0.18


def axes_or_new(ax: Axes | None) -> Axes:
    """Return the axes, or those of a new figure. The top and the right border are hidden."""
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(layout="constrained")
    elif not isinstance(ax, Axes):
        raise ArgumentError(f"ax is a {type(ax).__name__}: expected matplotlib axes, as plt.subplots() gives")
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT_COLOUR)
    return ax


def by_name(given: Tensor | Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return a dict of tensors by name. A single tensor gets the given name."""
    return dict(given) if isinstance(given, Mapping) else {name: given}


def literal(text: str) -> str:
    """Return the text with escaped dollar signs, which matplotlib would read as formulas."""
    return text.replace("$", r"\$")
