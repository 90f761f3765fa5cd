"""Do intervals hold as many targets as they promise? Observed against nominal coverage."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from torch import Tensor

from bitbayes import metrics
from bitbayes.palette import method_styles
from bitbayes.plots.style import FAINT_COLOUR, axes_or_new, literal
from bitbayes.regression import Prediction

SHOWN = 0.9  # the coverage that the legend gives
LEVELS = [each / 100 for each in range(1, 100)]


def coverage_curve(
    predictions: Prediction | Mapping[str, Prediction],
    targets: Tensor,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of targets inside of their intervals, against the coverage that was asked for.

    The intervals are those of `prediction.interval(coverage)`, for 1 to 99%. Points on the diagonal are
    calibrated. Below it the intervals are too narrow. The legend gives the share for intervals of 90%.

    Args:
        predictions: of n points, as `bayes.predict(x)` returns, or a mapping from the name of each method to
            its prediction.
        targets: (n, k). All outputs count.
        ax: the axes to draw on; those of a new figure if None.

    Returns:
        The axes.

    >>> import torch
    >>> import bitbayes as bb
    >>> mean, y = torch.zeros(500, 1), torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    >>> narrow = bb.Prediction(mean, torch.zeros_like(mean), torch.full_like(mean, 0.25))
    >>> ax = bb.plots.coverage_curve(narrow, y)
    >>> ax.get_legend().get_texts()[0].get_text()
    'bitbayes: 59% in intervals of 90%'
    """
    methods = {"bitbayes": predictions} if isinstance(predictions, Prediction) else dict(predictions)
    ax = axes_or_new(ax)
    ax.plot([0, 100], [0, 100], color=FAINT_COLOUR, linestyle="--", linewidth=1)
    for name, style in method_styles(methods).items():
        own = [100 * metrics.interval_coverage(methods[name].interval(each), targets) for each in LEVELS]
        label = f"{literal(name)}: {own[LEVELS.index(SHOWN)]:.0f}% in intervals of {100 * SHOWN:.0f}%"
        ax.plot([100 * each for each in LEVELS], own, color=style.light, label=label)
    ax.set(xlabel="Coverage asked for, %", ylabel="Targets in the interval, %", xlim=(0, 100), ylim=(0, 100))
    ax.legend(frameon=False)
    return ax
