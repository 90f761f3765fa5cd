"""How many mistakes remain when the least certain predictions are rejected?"""

from collections.abc import Mapping

from matplotlib.axes import Axes
from torch import Tensor

from bitbayes import metrics
from bitbayes.errors import ArgumentError
from bitbayes.palette import method_styles
from bitbayes.plots.style import axes_or_new, by_name, literal


def risk_coverage(
    scores: Tensor | Mapping[str, Tensor],
    correct: Tensor | Mapping[str, Tensor],
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of mistakes among accepted predictions against the share that is accepted.

    Predictions are accepted in the order of their scores, the largest first. A lower curve is better. The
    legend gives the mean of the curve, `metrics.aurc`.

    Args:
        scores: `bayes.score(x)` or confidences (n,), or a mapping from the name of each method to its scores.
        correct: whether each prediction is right, (n,) booleans. If the methods predict different classes, a
            mapping with the same names.
        ax: the axes to draw on; those of a new figure if None.

    Returns:
        The axes.

    >>> import torch
    >>> from bitbayes import plots
    >>> ax = plots.risk_coverage(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([True, True, False]))
    >>> [round(y) for y in ax.lines[0].get_ydata()]
    [0, 0, 33]
    """
    methods = by_name(scores, "bitbayes")
    right = dict(correct) if isinstance(correct, Mapping) else dict.fromkeys(methods, correct)
    if right.keys() != methods.keys():
        raise ArgumentError(
            f"scores has the names {list(methods)} and correct has {list(right)}: give the same names, "
            "or one tensor for all"
        )
    ax = axes_or_new(ax)
    for name, style in method_styles(methods).items():
        curve = metrics.risk_coverage(methods[name], right[name])
        mean = 100 * metrics.aurc(methods[name], right[name])
        label = f"{literal(name)}: mean {mean:.2f}%"
        ax.plot(100 * curve.coverage.numpy(), 100 * curve.risk.numpy(), color=style.light, label=label)
    ax.set(xlabel="Accepted, %", ylabel="Mistakes among them, %", xlim=(0, 100))
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
    return ax
