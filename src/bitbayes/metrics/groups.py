"""The measures that `Laplace.evaluate` returns together, by what the points have, and their names in logs."""

import itertools
import re
from collections.abc import Iterable

from torch import Tensor

from bitbayes.metrics.calibration import ece
from bitbayes.metrics.probabilities import accuracy, brier, mmc, nll
from bitbayes.metrics.ranking import auroc, fpr95
from bitbayes.metrics.regression import crps, gaussian_nll, interval_coverage, quantile_error, rmse
from bitbayes.metrics.selective import aurc
from bitbayes.metrics.several_labels import (
    all_right,
    f1,
    hamming,
    label_brier,
    label_ece,
    label_mmc,
    label_nll,
    mean_average_precision,
    subset_accuracy,
)

# MLflow allows 250 characters for the name of a set and of its metric together.
LONGEST_LOG_NAME = 200


def of_predictions(
    probs: Tensor, labels: Tensor, scores: Tensor, *, weights: Tensor | None = None
) -> dict[str, float]:
    """Return the measures of `Laplace.evaluate` on labelled data. Small `scores` (n,) are rejected first.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        scores: (n,).
        weights: how many times each point counts, (n,); once without them.

    >>> import torch
    >>> probs, labels = torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1])
    >>> of_predictions(probs, labels, torch.ones(2), weights=torch.tensor([3.0, 1.0]))["accuracy"]
    0.75
    """
    return {
        "accuracy": accuracy(probs, labels, weights=weights),
        "nll": nll(probs, labels, weights=weights),
        "ece": ece(probs, labels, weights=weights),
        "brier": brier(probs, labels, weights=weights),
        "mmc": mmc(probs, weights=weights),
        "aurc": aurc(scores, probs.argmax(1) == labels, weights=weights),
    }


def of_labels(
    probs: Tensor, labels: Tensor, scores: Tensor, *, thresholds: float | Tensor = 0.5
) -> dict[str, float]:
    """Return the measures of `Laplace.evaluate` on points with several labels each.

    Args:
        probs: (n, k), the probabilities of the labels.
        labels: (n, k), 0 and 1.
        scores: (n,); points with small ones are rejected first, for "aurc".
        thresholds: from which a label is given, one number or (k,).

    >>> import torch
    >>> probs, labels = torch.tensor([[0.9, 0.2], [0.9, 0.8]]), torch.tensor([[1, 0], [1, 0]])
    >>> found = of_labels(probs, labels, torch.tensor([2.0, 1.0]))
    >>> found["accuracy"], found["hamming"], found["f1_micro"], found["map"]
    (0.5, 0.25, 0.8, 1.0)
    """
    return {
        "accuracy": subset_accuracy(probs, labels, thresholds=thresholds),
        "hamming": hamming(probs, labels, thresholds=thresholds),
        "f1_micro": f1(probs, labels, thresholds=thresholds, average="micro"),
        "f1_macro": f1(probs, labels, thresholds=thresholds),
        "map": mean_average_precision(probs, labels),
        "nll": label_nll(probs, labels),
        "ece": label_ece(probs, labels),
        "brier": label_brier(probs, labels),
        "mmc": label_mmc(probs),
        "aurc": aurc(scores, all_right(probs, labels, thresholds)),
    }


def of_outliers(
    probs: Tensor, scores: Tensor, scores_in: Tensor, *, weights_in: Tensor | None = None
) -> dict[str, float]:
    """Return the measures of `Laplace.evaluate` on outliers. `scores_in` (n,) are the scores of the data."""
    return {**of_scores(scores, scores_in, weights_in=weights_in), "mmc": mmc(probs)}


def of_scores(scores: Tensor, scores_in: Tensor, *, weights_in: Tensor | None = None) -> dict[str, float]:
    """Return how well scores tell outliers from data, whose scores are `scores_in`."""
    return {
        "auroc": auroc(scores_in, scores, weights_in=weights_in),
        "fpr95": fpr95(scores_in, scores, weights_in=weights_in),
    }


def of_values(mean: Tensor, deviation: Tensor, interval: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the measures of `Laplace.evaluate` in regression; `interval` is that of 90%."""
    return {
        "rmse": rmse(mean, targets),
        "nll": gaussian_nll(mean, deviation, targets),
        "crps": crps(mean, deviation, targets),
        "coverage90": interval_coverage(interval, targets),
        "width90": (interval[..., 1] - interval[..., 0]).double().mean().item(),
        "quantile_error": quantile_error(mean, deviation, targets),
    }


def log_names(names: Iterable[object]) -> list[str]:
    """Return names that MLflow and Weights & Biases accept as a part of a metric's name.

    They consist of letters, digits and underscores, do not begin with a digit, and are not long. Other
    characters become underscores. If two names become the same, the later one gets a number.

    Args:
        names: any texts.

    >>> log_names(["SVHN", "far away", "far/away", "5 digits", ""])
    ['SVHN', 'far_away', 'far_away_2', '_5_digits', '_']
    """
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", str(name))[:LONGEST_LOG_NAME] or "_"
        plain = f"_{plain}" if plain[0].isdigit() else plain
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        found.append(plain if plain not in found else next(each for each in numbered if each not in found))
    return found
