"""Measures of the predictions of regression."""

import math

import torch
from torch import Tensor

from bitbayes.metrics.checks import check_values


def rmse(mean: Tensor, targets: Tensor) -> float:
    """Return the root of the mean squared error, √(mean (y − m)²), over points and outputs.

    Args:
        mean: predicted values (n, k).
        targets: (n, k).

    >>> rmse(torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [7.0]]))
    5.0
    """
    mean, _, targets = check_values(mean, None, targets)
    return (targets - mean).square().mean().sqrt().item()


def gaussian_nll(mean: Tensor, deviation: Tensor, targets: Tensor) -> float:
    """Return the negative log-likelihood in nats, the mean of ½ log 2πs² + ½((y − m)/s)².

    Args:
        mean: predicted values (n, k).
        deviation: the predicted standard deviations s of y, (n, k).
        targets: y, (n, k).

    >>> round(gaussian_nll(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, 1)), 4)  # ½ log 2π
    0.9189
    """
    mean, deviation, targets = check_values(mean, deviation, targets)
    z = (targets - mean) / deviation
    return (math.log(2 * math.pi) / 2 + deviation.log() + z.square() / 2).mean().item()


def crps(mean: Tensor, deviation: Tensor, targets: Tensor) -> float:
    """Return the continuous ranked probability score of Gaussian predictions, in the units of the targets.

    The mean of s[z(2Φ(z) − 1) + 2φ(z) − 1/√π], z = (y − m)/s. For a certain prediction it is |y − m|.

    Args:
        mean: predicted values (n, k).
        deviation: the predicted standard deviations s of y, (n, k).
        targets: y, (n, k).

    >>> round(crps(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, 1)), 4)  # (√2 − 1)/√π
    0.2337
    """
    mean, deviation, targets = check_values(mean, deviation, targets)
    z = (targets - mean) / deviation
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    own = z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi)
    return float((deviation * own).mean())


def interval_coverage(interval: Tensor, targets: Tensor) -> float:
    """Return the share of targets inside of their intervals.

    Args:
        interval: (n, k, 2), lower and upper ends.
        targets: (n, k).

    >>> interval_coverage(torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]]), torch.tensor([[0.5], [2.0]]))
    0.5
    """
    lower, _, targets = check_values(interval[..., 0], None, targets)
    inside = (lower <= targets) & (targets <= interval[..., 1].double().cpu())
    return inside.double().mean().item()


def quantile_error(mean: Tensor, deviation: Tensor, targets: Tensor) -> float:
    """Return how far quantiles are from calibrated: the mean of |share of y below the q-quantile − q|.

    q = 0.05, 0.1, …, 0.95.

    Args:
        mean: predicted values (n, k).
        deviation: the predicted standard deviations of y, (n, k).
        targets: y, (n, k).

    >>> round(quantile_error(torch.zeros(1, 1), torch.ones(1, 1), torch.full((1, 1), 9.0)), 4)
    0.5
    """
    mean, deviation, targets = check_values(mean, deviation, targets)
    places = torch.special.ndtr((targets - mean) / deviation).flatten()
    levels = torch.arange(1, 20, dtype=torch.float64) / 20
    return float(((places[:, None] <= levels).double().mean(0) - levels).abs().mean())
