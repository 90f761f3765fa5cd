"""The confidence in the plane, around points with two coordinates."""

from collections.abc import Callable

import numpy
import torch
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray
from torch import Tensor

from bitbayes.errors import DataError
from bitbayes.palette import CLASS_MARKERS, CLASSES, map_colours, rgb
from bitbayes.plots.style import axes_or_new

DARKER = 0.55  # points are so much darker than the map at its surest, to be seen there
MARGIN = 1.5  # the width of the view, relative to that of the data

Extent = tuple[float, float, float, float]


def toy_map(
    predict_proba: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    zoom: float = 1.0,
    side: int = 150,
    ax: Axes | None = None,
) -> Axes:
    """Draw the confidence of a classifier in the plane, with its decision boundary and the data.

    The hue is the predicted class, and white is a confidence of 1/k, a blind guess. The black line is the
    boundary between classes.

    Args:
        predict_proba: maps points (n, 2) to probabilities (n, k), as `bayes.predict_proba` does.
        x: data (n, 2).
        y: class numbers (n,), which choose the markers.
        zoom: how many times wider than the data the view is. Large values show what happens far away.
        side: the number of pixels along each side.
        ax: the axes to draw on; those of a new figure if None.

    Returns:
        The axes.

    >>> import torch
    >>> import bitbayes as bb
    >>> x, y = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    >>> bayes = bb.Laplace(torch.nn.Linear(2, 2), prior_variance=1.0).fit([(x, y)])
    >>> ax = bb.plots.toy_map(bayes.predict_proba, x, y, zoom=10, side=50)
    >>> ax.images[0].get_array().shape
    (50, 50, 3)
    """
    if x.dim() != 2 or x.shape[1] != 2:
        raise DataError(f"x has shape {tuple(x.shape)}: a map needs points with two coordinates, (n, 2)")
    extent = view_extent(x, zoom)
    with torch.no_grad():
        probs = predict_proba(grid_points(extent, side).to(x)).cpu()  # (side², k)
    ax = axes_or_new(ax)
    confidence, label = (each.reshape(side, side).numpy() for each in probs.max(1))
    draw_confidence(ax, confidence, label, extent, probs.shape[1])
    draw_points(ax, x, y, probs.shape[1])
    ax.set(xlim=extent[:2], ylim=extent[2:], aspect="equal")
    return ax


def view_extent(x: Tensor, zoom: float) -> Extent:
    """Return left, right, bottom and top of a square around the data (n, 2), `zoom` times as wide."""
    low, high = x.amin(0), x.amax(0)
    (across, up), half = ((low + high) / 2).tolist(), MARGIN / 2 * float((high - low).amax()) * zoom
    return across - half, across + half, up - half, up + half


def grid_points(extent: Extent, side: int) -> Tensor:
    """Return the points of a grid, (side², 2), row by row from the bottom."""
    left, right, bottom, top = extent
    x, y = (torch.linspace(*ends, side) for ends in ((left, right), (bottom, top)))
    return torch.cartesian_prod(y, x).flip(1)


def draw_confidence(
    ax: Axes, confidence: NDArray[numpy.floating], label: NDArray[numpy.integer], extent: Extent, classes: int
) -> AxesImage:
    """Draw the confidences (side, side) as colours, and black lines between points of different labels."""
    colours = numpy.array(map_colours(classes))  # (k, 256, 3)
    step = numpy.rint(255 * (confidence - 1 / classes) / (1 - 1 / classes)).clip(0, 255).astype(int)
    image = ax.imshow(colours[label, step], extent=extent, origin="lower", interpolation="bilinear")
    across, up = (numpy.linspace(*ends, len(confidence)) for ends in (extent[:2], extent[2:]))
    for level in _boundaries(confidence, label, classes):
        if level.min() < 0 < level.max():  # matplotlib warns if there is no such line
            ax.contour(across, up, level, levels=[0.0], colors="black", linewidths=0.8)
    return image


def draw_points(ax: Axes, x: Tensor, y: Tensor, classes: int, size: float = 18, edge: float = 0.5) -> None:
    """Draw the data as points, with a colour and a marker for each class."""
    for c in range(classes):
        points = x[y == c].cpu().numpy()
        colour = [DARKER * each for each in rgb(CLASSES[c % len(CLASSES)])]
        marker = CLASS_MARKERS[c % len(CLASS_MARKERS)]
        where = points[:, 0], points[:, 1]
        ax.scatter(*where, s=size, c=[colour], marker=marker, edgecolors="white", linewidths=edge)


def draw_key(ax: Axes, classes: int) -> None:
    """Draw the colours of all confidences, a column for each class."""
    colours = numpy.array(map_colours(classes)).swapaxes(0, 1)  # (256, k, 3)
    ax.imshow(colours, extent=(0, classes, 100 / classes, 100), origin="lower", aspect="auto")
    ax.set(xticks=[], yticks=[100 / classes, 100], ylabel="Confidence")
    ax.set_yticklabels([f"{100 / classes:.0f}%", "100%"])
    ax.yaxis.tick_right()


def _boundaries(
    confidence: NDArray[numpy.floating], label: NDArray[numpy.integer], classes: int
) -> list[NDArray[numpy.floating]]:
    """Return functions on the grid, one per class, that are 0 on its boundary. Two classes share one."""
    if classes == 2:  # p − ½ of class 1, which contour lines can interpolate
        return [(confidence - 0.5) * (2 * label - 1)]
    return [(label == c) - 0.5 for c in range(classes)]
