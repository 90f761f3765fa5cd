"""The Gaussian over weights in place in its network: over the last layer, or over all layers."""

from bitbayes.posteriors.all_layers import AllLayers
from bitbayes.posteriors.base import LogitsByPrior, WeightPosterior
from bitbayes.posteriors.last_layer import LastLayer

POSTERIORS: dict[str, type[WeightPosterior]] = {"last": LastLayer, "all": AllLayers}

__all__ = ["POSTERIORS", "AllLayers", "LastLayer", "LogitsByPrior", "WeightPosterior"]
