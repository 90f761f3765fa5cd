"""What a `Laplace` shows of itself: what was asked for, what was chosen, and on how many points."""

from __future__ import annotations

from typing import NamedTuple

from bitbayes.options import AUTO, Options
from bitbayes.posteriors import WeightPosterior
from bitbayes.residual import Residual
from bitbayes.settings import Settings

# How many noise variances or class biases are shown.
SHOWN_NUMBERS = 3


class Known(NamedTuple):
    """What is known of a `Laplace`; posterior and residual are None before `fit`."""

    options: Options
    posterior: WeightPosterior | None
    residual: Residual | None
    settings: Settings


def summary(model: str, known: Known) -> str:
    """Return what stands between the brackets of the representation.

    Args:
        model: the name of its class.
        known: what is known.
    """
    options, posterior = known.options, known.posterior
    every = f", covariance={_covariance(known)}" if options.over_all_layers else ""
    some = "" if options.subnetwork is None else f", subnetwork={options.subnetwork}"
    rows = [
        f"model={model}, layers={options.layers!r}{some}, "
        f"structure={_structure(known)}, predictive={_predictive(known)}{every}",
        f"prior_variance={_prior(known)}, {_spread(known)}, residual={_residual(known)}",
        "not fitted",
    ]
    if posterior is not None:
        likelihood = posterior.likelihood
        what = "classes" if likelihood.one_label else "labels" if likelihood.classifies else "outputs"
        count = likelihood.classes(posterior.outputs)
        rows[-1] = f"fitted on {posterior.fitted.count:,} points, {count:,} {what}"
    return "\n  " + ",\n  ".join(rows) + "\n"


def _structure(known: Known) -> str:
    options, posterior = known.options, known.posterior
    if options.structure != AUTO or posterior is None:
        return repr(options.structure)
    found = "kron" if options.over_all_layers else next(iter(posterior.fitted.curvature.values())).structure
    return f"{found!r} (auto)"


def _predictive(known: Known) -> str:
    name, posterior = known.options.predictive, known.posterior
    if name != AUTO or posterior is None:
        return repr(name)
    pairs = posterior.has_cross_covariance
    found = posterior.likelihood.predictive_name(name, posterior.outputs, has_cross_covariance=pairs)
    return f"{found!r} (auto)"


def _covariance(known: Known) -> str:
    options, posterior = known.options, known.posterior
    if options.covariance != AUTO or posterior is None:
        return repr(options.covariance)
    return f"{options.draws(posterior.outputs) or 'exact'!r} (auto)"


def _prior(known: Known) -> str:
    value = known.settings.prior_variance
    if value is None:
        return "1 (not tuned)"
    return f"{value:.4g}" if isinstance(value, float) else f"one for each of {len(value)} layers"


def _spread(known: Known) -> str:
    """The temperature, or in regression the noise variance."""
    settings, posterior = known.settings, known.posterior
    if posterior is None or not posterior.likelihood.has_noise:
        bias = settings.class_bias
        shown = "" if bias is None else f", class_bias={_numbers(bias)}"
        return f"temperature={settings.temperature:.4g}{shown}"
    noise = posterior.noise_variance if settings.noise_variance is None else settings.noise_variance
    return f"noise_variance={_numbers(noise if isinstance(noise, tuple) else (noise,))}"


def _residual(known: Known) -> str:
    asked, residual, settings = known.options.residual, known.residual, known.settings
    if known.posterior is None:
        return repr(asked)
    if residual is None or not settings.has_residual:
        awaits_tuning = asked == AUTO and residual is not None and settings.prior_variance is None
        return "off until tuned" if awaits_tuning else "off"
    return f"on (at {', '.join(residual.names)})"


def _numbers(values: tuple[float, ...]) -> str:
    """The first of some numbers."""
    shown = ", ".join(f"{each:.4g}" for each in values[:SHOWN_NUMBERS])
    return f"({shown}{', …' if len(values) > SHOWN_NUMBERS else ''})"
