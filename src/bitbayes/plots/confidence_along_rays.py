"""What happens far from the data? The confidence at δ·x, for growing δ."""

import torch
from matplotlib.axes import Axes
from torch import Tensor

from bitbayes.baselines import TemperatureScaling
from bitbayes.errors import DataError
from bitbayes.laplace import Laplace
from bitbayes.plots.style import BAND_OPACITY, COLOURS, FAINT_COLOUR, axes_or_new
from bitbayes.rays import round_up

EXPONENTS, STEPS = (0.0, 4.0), 41  # of the default δ: from 1 to 10,000
LOWEST, HIGHEST = 0.1, 0.9  # the quantiles between which a band lies


def confidence_along_rays(
    bayes: Laplace,
    x: Tensor,
    *,
    deltas: Tensor | None = None,
    limit: bool = True,
    certificate: bool = True,
    plain: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw the confidence at δ·x against δ: its mean over the rows of x, its limit, and a certificate.

    A ReLU network becomes certain as δ grows. The blue line is `bayes`, the grey line the network alone. With
    several rows each line is a mean, in a band from the 10% to the 90% quantile. The dashed line is the
    limit for δ → ∞ (`bayes.limit`). The thick line at the right is a certificate (`bayes.certify`). It begins
    where no unit of the network changes its state any more on any of the rays. From there on the mean
    confidence stays below it. If this is beyond the last δ, it is in the legend only.

    Args:
        bayes: a fitted `Laplace`.
        x: one ray for each row, (n, ...), floating point.
        deltas: the values of δ, (m,), positive and increasing. By default 41 from 1 to 10,000.
        limit: whether to draw the limit. It needs a piecewise linear network, such as a ReLU network.
        certificate: whether to draw the certificate. It needs the same.
        plain: whether to draw the network alone.
        ax: the axes to draw on; those of a new figure if None.

    Returns:
        The axes.

    >>> import torch
    >>> import bitbayes as bb
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(40, 2), torch.arange(40) % 2
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 10), torch.nn.ReLU(), torch.nn.Linear(10, 2))
    >>> bayes = bb.Laplace(model, prior_variance=10.0, residual=False).fit([(x, y)])
    >>> ax = bb.plots.confidence_along_rays(bayes, x[:5])
    >>> ax.get_xscale(), ax.get_ylabel()
    ('log', 'Confidence, %')
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        given = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise DataError(f"x is {given}: expected floating-point inputs, which can be multiplied by δ")
    if deltas is None:
        deltas = torch.logspace(*EXPONENTS, STEPS, dtype=torch.float64)
    ax = axes_or_new(ax)
    methods: dict[str, Laplace | TemperatureScaling] = {"bitbayes": bayes}
    if plain:
        methods["plain"] = TemperatureScaling(bayes.model)
        methods["plain"].temperature = 1.0
    classes = 0
    for name, method in methods.items():
        probs = [method.predict_proba(x * delta) for delta in deltas.tolist()]  # (n, k) each
        classes = probs[0].shape[1]
        confidence = 100 * torch.stack([each.amax(1).double().cpu() for each in probs])  # (m, n)
        if len(x) > 1:
            low, high = (confidence.quantile(q, dim=1).numpy() for q in (LOWEST, HIGHEST))
            ax.fill_between(deltas.numpy(), low, high, color=COLOURS[name], alpha=BAND_OPACITY, linewidth=0)
        ax.plot(deltas.numpy(), confidence.mean(1).numpy(), color=COLOURS[name], linewidth=2, label=name)
    ends = deltas[0].item(), deltas[-1].item()
    blue = COLOURS["bitbayes"]
    if limit:
        value = 100 * bayes.limit(x).confidence.mean().item()
        label = f"limit: {value:.1f}%"
        ax.plot(ends, [value, value], color=blue, linestyle="--", linewidth=1, label=label)
    if certificate:
        certified = bayes.certify(x)
        alpha, value = certified.alpha.max().item(), 100 * certified.confidence.mean().item()
        digits = 0 if alpha >= 10 else 2
        label = f"{'never' if len(x) == 1 else 'mean never'} above {round_up(value, 0.1):.1f}% "
        label += f"from δ = {round_up(alpha, 10.0**-digits):,.{digits}f} on"
        shown = [alpha, ends[1]] if alpha < ends[1] else []  # beyond the last δ it is in the legend only
        ax.plot(shown, [value] * len(shown), color=blue, alpha=0.5, linewidth=4, label=label)
    guess = 100 / classes
    ax.axhline(guess, color=FAINT_COLOUR, linestyle=":", linewidth=1, label=f"blind guess: {guess:.3g}%")
    ax.set(xscale="log", xlabel="δ: the inputs are multiplied by this", ylabel="Confidence, %", ylim=(0, 103))
    ax.legend(frameon=False)
    return ax
