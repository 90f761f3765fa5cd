"""Is the confidence right? Accuracy against confidence, bin by bin."""

from collections.abc import Mapping

import numpy
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from torch import Tensor

from bitbayes import metrics
from bitbayes.errors import ArgumentError
from bitbayes.palette import method_styles
from bitbayes.plots.style import BAND_OPACITY, FAINT_COLOUR, axes_or_new, by_name, literal

LOWEST, HIGHEST = 2.5, 97.5  # the quantiles, in %, between which a band lies


def reliability(
    probs: Tensor | Mapping[str, Tensor],
    labels: Tensor,
    *,
    bins: int = 15,
    resamples: int = 500,
    seed: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of correct predictions against the confidence: a reliability diagram.

    Points on the diagonal are calibrated. Points below it are overconfident. The bins are those of
    `metrics.reliability`. The band holds 95% of the accuracies in bootstrap samples of the points. In a bin
    where all predictions are right, or all are wrong, it has no width. A strip above shows how many points
    each bin holds, on a logarithmic axis. The legend gives the expected calibration error (ECE).

    Args:
        probs: probabilities (n, k), or a mapping from the name of each method to its probabilities.
        labels: class numbers (n,).
        bins: the number of bins.
        resamples: the number of bootstrap samples; 0 draws no band.
        seed: for the bootstrap samples.
        ax: the axes to draw on; those of a new figure if None. The strip is `ax.child_axes[-1]`.

    Returns:
        The axes.

    >>> import torch
    >>> from bitbayes import plots
    >>> probs = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    >>> ax = plots.reliability({"plain": probs}, probs.argmax(1), bins=5)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('Confidence, %', 'Correct, %')
    """
    if not isinstance(resamples, int) or resamples < 0:
        raise ArgumentError(f"resamples={resamples!r}: give a number of bootstrap samples, or 0 for no band")
    methods = by_name(probs, "bitbayes")
    ax = axes_or_new(ax)
    ax.plot([0, 100], [0, 100], color=FAINT_COLOUR, linestyle="--", linewidth=1)
    strip = ax.inset_axes((0, 1.03, 1, 0.16), sharex=ax)
    edges = numpy.linspace(0, 100, bins + 1)
    for name, style in method_styles(methods).items():
        diagram = metrics.reliability(methods[name], labels, bins)
        filled = diagram.count.numpy() > 0  # (bins,)
        count, x, y = (
            each.numpy()[filled] for each in (diagram.count, 100 * diagram.confidence, 100 * diagram.accuracy)
        )
        if resamples:
            low, high = _band(count, y / 100, resamples, seed)
            ax.fill_between(x, 100 * low, 100 * high, color=style.light, alpha=BAND_OPACITY, linewidth=0)
        error = 100 * metrics.ece(methods[name], labels, bins)
        ax.plot(x, y, color=style.light, marker=style.marker, label=f"{literal(name)}: ECE {error:.1f}%")
        strip.stairs(diagram.count.numpy(), edges, color=style.light, linewidth=1.5)
    ax.set(xlabel="Confidence, %", ylabel="Correct, %", xlim=(0, 100), ylim=(0, 103))
    strip.set(yscale="log", ylabel="points", ylim=(0.7, None))
    strip.yaxis.set_minor_locator(NullLocator())
    strip.tick_params(labelbottom=False, labelsize="small")
    strip.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return ax


def _band(
    count: "numpy.typing.NDArray[numpy.int64]",
    accuracy: "numpy.typing.NDArray[numpy.float64]",
    resamples: int,
    seed: int,
) -> "tuple[numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.float64]]":
    """Return the quantiles of the bins' accuracies (bins,) over bootstrap samples of all points.

    A sample of n points, drawn with replacement, has multinomial numbers of right and of wrong points in the
    bins.
    """
    n = count.sum()
    right = numpy.rint(count * accuracy)
    shares = numpy.concatenate([right, count - right]) / n  # (2·bins,)
    drawn = numpy.random.default_rng(seed).multinomial(n, shares, size=resamples)  # (resamples, 2·bins)
    right, wrong = numpy.split(drawn, 2, axis=1)
    with numpy.errstate(invalid="ignore"):  # NaN for a bin that is empty in a sample
        drawn_accuracy = right / (right + wrong)
    # If all samples leave a bin empty, its band has no width.
    never_filled = numpy.isnan(drawn_accuracy).all(0)
    drawn_accuracy = numpy.where(never_filled, accuracy, drawn_accuracy)
    return tuple(numpy.nanpercentile(drawn_accuracy, [LOWEST, HIGHEST], axis=0))
