"""Confidence in the plane: views of the data, grids of points in them, and maps of colours."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from torch import Tensor

CLASS_COLOURS = ("#d7191c", "#1b9e77", "#b04fc4", "#ff7f00")  # none of them is a colour of the map
CLASS_MARKERS = ("o", "^", "s", "D")
MARGIN = 1.5  # a view is so many times as wide as the data

Extent = tuple[float, float, float, float]


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


def draw_confidence(ax: Axes, confidence: Tensor, label: Tensor, extent: Extent, classes: int) -> AxesImage:
    """Draw the confidences (side, side) as colours, and black lines between points of different labels."""
    image = ax.imshow(
        confidence.numpy(),
        extent=extent,
        origin="lower",
        vmin=1 / classes,
        vmax=1,
        cmap="cividis",
        interpolation="bilinear",
    )
    across, up = (np.linspace(*ends, len(confidence)) for ends in (extent[:2], extent[2:]))
    # Functions that are 0 on the boundary: for two classes p − ½ of class 1, which can be interpolated.
    levels = [(label == c).double() - 0.5 for c in range(classes)]
    if classes == 2:
        levels = [(confidence.double() - 0.5) * (2 * label - 1)]
    for level in levels:
        if level.min() < 0 < level.max():  # matplotlib warns if there is no such line
            ax.contour(across, up, level.numpy(), levels=[0.0], colors="black", linewidths=0.8)
    return image
