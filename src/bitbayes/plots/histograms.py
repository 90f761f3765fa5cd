"""Does a score separate outliers from the data? Its distributions on both, on one axis."""

from collections.abc import Mapping

import numpy
from matplotlib.axes import Axes
from torch import Tensor

from bitbayes import metrics
from bitbayes.palette import OTHERS
from bitbayes.plots.style import TEXT_COLOUR, axes_or_new, by_name, literal

# The axis begins where this share of each set lies above: a few outliers can have very low scores.
SHARE_SHOWN = 0.99


def histograms(
    inside: Tensor,
    outside: Tensor | Mapping[str, Tensor],
    *,
    bins: int = 40,
    accept: float = 0.95,
    xlabel: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how a score is distributed on the data and on outliers, and the threshold between them.

    The threshold accepts the share `accept` of the data. The legend says how many of 100 outliers it lets
    through. Each histogram has area 1. The lowest 1% of each set is counted in the first bin.

    Args:
        inside: of test data, scores `bayes.score(x)` (n,), or probabilities (n, k), scored by confidence.
        outside: the same for outliers, or a mapping from the name of each set of outliers to its scores.
        bins: the number of bins.
        accept: the share of the data to accept, above 0 and at most 1.
        xlabel: the name of the score. By default "Score", or "Confidence" for probabilities.
        ax: the axes to draw on; those of a new figure if None.

    Returns:
        The axes.

    >>> import torch
    >>> from bitbayes import plots
    >>> ax = plots.histograms(torch.tensor([2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0]))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['data', 'outliers: 0 of 100 get through', 'threshold: accepts 95% of the data']
    """
    sets = by_name(outside, "outliers")
    scores = [_scores(each) for each in (inside, *sets.values())]
    threshold = metrics.threshold(scores[0], accept=accept)
    ax = axes_or_new(ax)
    low = min(metrics.threshold(each, accept=SHARE_SHOWN) for each in scores)
    high = max(float(each.max()) for each in scores)
    edges = numpy.linspace(low, high if high > low else low + 1, bins + 1).tolist()
    labels = ["data"]
    for name, outlier_scores in zip(sets, scores[1:], strict=True):
        through = 100 * float((outlier_scores >= threshold).double().mean())
        labels.append(f"{literal(name)}: {through:.0f} of 100 get through")
    for number, (values, label) in enumerate(zip(scores, labels, strict=True)):
        colour = OTHERS[(number - 1) % len(OTHERS)].light if number else TEXT_COLOUR
        shown = values.clamp(min=low).numpy()
        ax.hist(shown, edges, density=True, histtype="stepfilled", color=colour, alpha=0.25)
        ax.hist(shown, edges, density=True, histtype="step", color=colour, linewidth=1.5, label=label)
    label = f"threshold: accepts {100 * accept:g}% of the data"
    ax.axvline(threshold, color=TEXT_COLOUR, linestyle="--", linewidth=1, label=label)
    ax.set(xlabel=xlabel or ("Confidence" if inside.dim() == 2 else "Score"), ylabel="Density")
    ax.set_ylim(top=1.3 * ax.dataLim.ymax)  # room for the legend
    ax.legend(frameon=False)
    return ax


def _scores(given: Tensor) -> Tensor:
    """Return the scores (n,) on the CPU. For probabilities (n, k) these are the confidences."""
    scores = given.detach().double().cpu()
    return scores.amax(1) if scores.dim() == 2 else scores
