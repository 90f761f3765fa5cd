"""The Gaussian over weights in place in its network: over the last layer, or over all layers."""

from torch import nn

from bitbayes.fitted import Fitted
from bitbayes.options import Options
from bitbayes.posteriors.all_layers import AllLayers
from bitbayes.posteriors.base import LogitsByPrior, WeightPosterior
from bitbayes.posteriors.drawn_layers import DrawnLayers
from bitbayes.posteriors.last_layer import LastLayer

__all__ = ["AllLayers", "DrawnLayers", "LastLayer", "LogitsByPrior", "WeightPosterior", "posterior_of"]


def posterior_of(model: nn.Module, fitted: Fitted, options: Options) -> WeightPosterior:
    """The posterior that the options ask for."""
    if not options.over_all_layers:
        return LastLayer(model, fitted)
    draws = options.draws(fitted.weights.outputs)
    return AllLayers(model, fitted) if draws is None else DrawnLayers(model, fitted, draws)
