"""Calibration against the detection of outliers, for several prior variances."""

import copy
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from bitbayes.errors import ArgumentError
from bitbayes.laplace import Laplace
from bitbayes.model import Data
from bitbayes.plots.style import COLOURS, FAINT_COLOUR, TEXT_COLOUR, axes_or_new
from bitbayes.settings import Settings

PRIOR_VARIANCES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
LEAST_ECE = 0.01  # in %, because a logarithmic axis has no 0


def trade_off(
    bayes: Laplace,
    loader: Iterable[object],
    outliers: Data,
    *,
    prior_variances: Sequence[float] = PRIOR_VARIANCES,
    ax: Axes | None = None,
) -> Axes:
    """Draw the calibration error on the data against the detection of outliers, for several prior variances.

    Further to the right, outliers are better separated from the data (AUROC of `bayes.score`). Further down,
    the confidence on the data is better calibrated (ECE). So the best corner is at the bottom right. The grey
    line is the posterior at each prior variance, at a temperature of 1 and without a residual. The blue star
    is `bayes` with its current settings.

    Each prior variance takes one pass over both sets of data. `bayes` is not changed.

    Args:
        bayes: a fitted `Laplace`, tuned or not.
        loader: test data, as for `bayes.evaluate`. It must give the same points each time.
        outliers: a tensor or a loader of inputs that belong to no class.
        prior_variances: the values along the line.
        ax: the axes to draw on; those of a new figure if None.

    Returns:
        The axes.

    >>> import torch
    >>> import bitbayes as bb
    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> data = [(x, (x[:, 0] > 0).long())]
    >>> bayes = bb.Laplace(torch.nn.Linear(2, 2)).fit(data).tune(data)
    >>> ax = bb.plots.trade_off(bayes, data, 10 * x, prior_variances=[0.1, 1.0, 10.0])
    >>> len(ax.lines[0].get_xdata()), len(ax.lines[1].get_xdata())
    (3, 1)
    """
    if len(prior_variances) == 0:  # an array has no truth value
        raise ArgumentError("prior_variances is empty: give at least one number")
    other = copy.copy(bayes)  # it has its own settings, and shares the fitted posterior
    other.settings = Settings(other.settings.prior_variance)
    curve = []
    for variance in prior_variances:
        other.prior_variance = variance
        curve.append(_measure(other, loader, outliers))
    ax = axes_or_new(ax)
    ax.plot(
        *zip(*curve, strict=True),
        color=FAINT_COLOUR,
        marker=".",
        linewidth=1.5,
        label="prior variances",
        zorder=1,
    )
    for variance, place in zip(prior_variances, curve, strict=True):
        if variance in (prior_variances[0], prior_variances[-1]):
            text = f"σ₀² = {variance:g}"
            ax.annotate(text, place, (4, 4), textcoords="offset points", color=TEXT_COLOUR, fontsize="small")
    current = _measure(bayes, loader, outliers)
    style = {"color": COLOURS["bitbayes"], "marker": "*", "markersize": 16, "linestyle": "none"}
    ax.plot(*([value] for value in current), label="bitbayes", zorder=3, **style)  # type: ignore[arg-type]
    ax.set(
        yscale="log",
        xlabel="AUROC of outliers against data, %        better →",
        ylabel="← better        ECE on the data, %",
    )
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.legend(frameon=False)
    return ax


def _measure(bayes: Laplace, loader: Iterable[object], outliers: Data) -> tuple[float, float]:
    """Return the AUROC and the ECE, in %."""
    scores = bayes.evaluate(loader, outliers={"outliers": outliers}, progress=False)
    return 100 * scores["outliers/auroc"], max(LEAST_ECE, 100 * scores["ece"])
