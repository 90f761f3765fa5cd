"""Measures of predicted probabilities and values: calibration, sharpness, separation of outliers from data.

`probs` is (n, k): one row of k class probabilities per point. Each row sums to one. A network with a single
logit gives (n, 2). `labels` is (n,): whole numbers from 0 to k − 1. In regression, `mean`, `deviation` and
`targets` are (n, k). With several labels for each point (`f1`, `hamming`, `label_nll`, …) `probs` (n, k) are
the probabilities of the labels, whose rows do not sum to one, and `labels` (n, k) are 0 and 1. The
*confidence* of a point is its largest probability. `scores` is (n,): any numbers, larger for points that look
more like the data. All sums are taken in float64 on the CPU, so the result does not depend on the device.
"""

from bitbayes.metrics.brier_parts import BrierParts, brier_decomposition
from bitbayes.metrics.calibration import Reliability, ece, mce, reliability
from bitbayes.metrics.checks import check_share as check_share
from bitbayes.metrics.classwise import classwise_ece, ece_per_class
from bitbayes.metrics.debiased import debiased_rmsce
from bitbayes.metrics.floor import CalibrationFloor, calibration_floor
from bitbayes.metrics.groups import log_names, of_labels, of_outliers, of_predictions, of_scores, of_values
from bitbayes.metrics.probabilities import accuracy, brier, entropy, mmc, nll
from bitbayes.metrics.ranking import auroc, fpr95, threshold
from bitbayes.metrics.regression import crps, gaussian_nll, interval_coverage, quantile_error, rmse
from bitbayes.metrics.selective import RiskCoverage, augrc, aurc, risk_coverage
from bitbayes.metrics.several_labels import (
    f1,
    hamming,
    label_brier,
    label_ece,
    label_mmc,
    label_nll,
    label_thresholds,
    mean_average_precision,
    subset_accuracy,
)
from bitbayes.metrics.smooth import smooth_ece

__all__ = [
    "BrierParts",
    "CalibrationFloor",
    "Reliability",
    "RiskCoverage",
    "accuracy",
    "augrc",
    "aurc",
    "auroc",
    "brier",
    "brier_decomposition",
    "calibration_floor",
    "classwise_ece",
    "crps",
    "debiased_rmsce",
    "ece",
    "ece_per_class",
    "entropy",
    "f1",
    "fpr95",
    "gaussian_nll",
    "hamming",
    "interval_coverage",
    "label_brier",
    "label_ece",
    "label_mmc",
    "label_nll",
    "label_thresholds",
    "log_names",
    "mce",
    "mean_average_precision",
    "mmc",
    "nll",
    "of_labels",
    "of_outliers",
    "of_predictions",
    "of_scores",
    "of_values",
    "quantile_error",
    "reliability",
    "risk_coverage",
    "rmse",
    "smooth_ece",
    "subset_accuracy",
    "threshold",
]
