"""What is predicted, and how far off may it be? The mean, its intervals and the targets."""

import torch
from matplotlib.axes import Axes
from torch import Tensor

from bitbayes.errors import ArgumentError, DataError
from bitbayes.plots.style import BAND_OPACITY, COLOURS, TEXT_COLOUR, axes_or_new
from bitbayes.regression import Prediction


def intervals(
    prediction: Prediction,
    targets: Tensor | None = None,
    *,
    x: Tensor | None = None,
    coverage: float = 0.9,
    output: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw the predicted mean with two bands around it, and the targets as points.

    The wide band is the interval of a target, `prediction.interval(coverage)`. The dark one inside of it is
    that of the function alone, without the noise: where it is narrow, more data would change little.

    Args:
        prediction: of n points, as `bayes.predict(x)` returns.
        targets: (n, k), or (n,) for one output. None draws no points.
        x: the inputs (n,) or (n, 1), for the horizontal axis. Without it the points are in the order of their
            predicted means.
        coverage: the probability that a target lies in its interval, between 0 and 1.
        output: which of the k outputs to draw.
        ax: the axes to draw on; those of a new figure if None.

    Returns:
        The axes.

    >>> import torch
    >>> import bitbayes as bb
    >>> ones = torch.ones(3, 1)
    >>> prediction = bb.Prediction(torch.tensor([[3.0], [1.0], [2.0]]), 0.1 * ones, ones)
    >>> ax = bb.plots.intervals(prediction, torch.tensor([2.5, 1.5, 2.0]))
    >>> ax.lines[0].get_ydata().tolist(), ax.get_xlabel()
    ([1.0, 2.0, 3.0], 'Points, in the order of the mean')
    """
    n, k = prediction.mean.shape
    if not isinstance(output, int) or not -k <= output < k:
        raise ArgumentError(f"output={output!r}: the prediction has {k} outputs, 0 to {k - 1}")
    function = Prediction(prediction.mean, prediction.variance, torch.zeros_like(prediction.noise_variance))
    whole, own = (each.interval(coverage)[:, output].detach().cpu() for each in (prediction, function))
    mean = prediction.mean[:, output].detach().cpu()
    along = mean if x is None else _column(x, n, "x")
    order = along.argsort(stable=True)
    place = torch.arange(n) if x is None else along[order]
    points = None
    if targets is not None:
        points = _column(targets if targets.dim() < 2 else targets[:, output], n, "targets")
    ax = axes_or_new(ax)
    blue = COLOURS["bitbayes"]
    for band, opacity, label in (
        (whole, BAND_OPACITY, f"{100 * coverage:.3g}% of targets"),
        (own, 2 * BAND_OPACITY, "the function alone"),
    ):
        low, high = band[order].T.numpy()
        ax.fill_between(place.numpy(), low, high, color=blue, alpha=opacity, linewidth=0, label=label)
    ax.plot(place.numpy(), mean[order].numpy(), color=blue, label="mean")
    if points is not None:
        ax.plot(place.numpy(), points[order].numpy(), ".", color=TEXT_COLOUR, markersize=4, label="targets")
    ax.set(xlabel="Points, in the order of the mean" if x is None else "Input", ylabel="Value")
    ax.legend(frameon=False)
    return ax


def _column(values: Tensor, n: int, name: str) -> Tensor:
    """The n numbers of a tensor (n,) or (n, 1), on the CPU."""
    if tuple(values.shape) not in {(n,), (n, 1)}:
        raise DataError(f"{name} has shape {tuple(values.shape)}: expected {n} numbers, one for each point")
    return values.detach().cpu().reshape(n)
