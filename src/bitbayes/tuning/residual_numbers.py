"""The residual's numbers that follow from the distances and energies of the validation data.

They are the same for all likelihoods: how much each level counts, where the data end, what the score needs.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from bitbayes.residual import Residual
from bitbayes.settings import Settings
from bitbayes.tuning.costs import Costs, all_points
from bitbayes.tuning.quantiles import median, quantile, variance

# The edge of the data: the quantile of the distances on the validation data.
EDGE = 0.99
# The steep term begins at this multiple of the edge, and further out if few points determine the edge.
BEYOND, FEW_POINTS = 2.0, 4.0
SMALLEST_DISTANCE = 1e-6
# The least deviation of the distance from the classes, which may be 0 on all of few points.
SMALLEST_SPREAD = 0.1
# Energies whose deviation is so many rounding errors are the same.
ROUNDINGS = 16


def validation_distances(costs: Costs, residual: Residual) -> Tensor:
    """The distances of all validation points, (n, levels). Both inputs of a pair are points."""
    found = [each.distances.flatten(0, -2) for each in costs.groups if each.distances is not None]
    return all_points(found, len(residual.names))


def data_edges(costs: Costs, distances: Tensor, residual: Residual) -> Tensor:
    """The edge of the data at each level, (levels,), from the distances of the validation data."""
    edges = quantile(distances, EDGE, costs.weights)
    return torch.maximum(edges, _least_edges(residual).to(distances))


def thresholds(edges: Tensor, residual: Residual, count: float) -> dict[str, float]:
    """Where the steep term begins at each level, for so many validation points."""
    further = BEYOND * (1 + FEW_POINTS / math.sqrt(count))
    return dict(zip(residual.names, (further * edges).tolist(), strict=True))


def _least_edges(residual: Residual) -> Tensor:
    """The least edges of the data, (levels,), for few points, or points that are all alike.

    Distances with correlations have a mean square of at most 1 on the training data. That from the classes is
    0 on many points.
    """
    pixels = [name for name, sums in residual.sums.items() if not sums.correlated]
    least = [SMALLEST_DISTANCE if name in pixels else 1.0 for name in residual.names]
    return torch.tensor(least, dtype=torch.float64)


def level_weights(costs: Costs, distances: Tensor, edges: Tensor, residual: Residual) -> dict[str, float]:
    """The weights of the levels in K: equal in units of their edges, and K is 1 at the edge of the data.

    Args:
        costs: knows the weights of the points.
        distances: (n, levels), of all validation points.
        edges: (levels,), the edge of the data at each level.
        residual: which levels count near the data.
    """
    weights = edges.new_tensor([name in residual.near_names for name in residual.names]) / edges.pow(3)
    edge = float(quantile(distances.pow(3) @ weights, EDGE, costs.weights))
    return dict(zip(residual.names, (weights / max(edge, SMALLEST_DISTANCE**3)).tolist(), strict=True))


def with_score(costs: Costs, settings: Settings, distances: Tensor, residual: Residual) -> Settings:
    """The settings with what the score needs: how energy and distances vary on the validation data."""
    plain = replace(settings, class_bias=None)  # the score does not see it
    energies = all_points([costs.likelihood.score(each.gaussians([plain])[0]) for each in costs.groups])
    # Where all energies are the same (but for roundings of float32, which another batch may change), the
    # score is that of the distance.
    rounding = ROUNDINGS * torch.finfo(torch.float32).eps * (1 + float(energies.abs().amax()))
    spread = max(float(variance(energies, costs.weights).sqrt()), rounding)
    settings = replace(settings, score_centre=float(median(energies, costs.weights)), score_spread=spread)
    if residual.measures_classes:
        own = distances[:, -1]
        spread = max(float(variance(own, costs.weights).sqrt()), SMALLEST_SPREAD)
        settings = replace(settings, class_centre=float(median(own, costs.weights)), class_spread=spread)
    edge = max(float(quantile(settings.furthest(distances), EDGE, costs.weights)), SMALLEST_DISTANCE**3)
    return replace(settings, score_edge=edge)
