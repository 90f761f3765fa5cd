"""Tuning: the cost of a candidate (objectives), which candidates to try (search), outliers (noise)."""

from bitbayes.tuning.calibrated import calibrate, tune_calibrated
from bitbayes.tuning.calibrated_regression import tune_calibrated_regression
from bitbayes.tuning.costs import Costs
from bitbayes.tuning.objectives import CALIBRATED, EVIDENCE, check_objective, objective_for
from bitbayes.tuning.points import Points, kept_points
from bitbayes.tuning.request import TuningRequest
from bitbayes.tuning.search import warn_at_the_edge
from bitbayes.tuning.tune import tune_by_evidence, tune_on_data

__all__ = [
    "CALIBRATED",
    "EVIDENCE",
    "Costs",
    "Points",
    "TuningRequest",
    "calibrate",
    "check_objective",
    "kept_points",
    "objective_for",
    "tune_by_evidence",
    "tune_calibrated",
    "tune_calibrated_regression",
    "tune_on_data",
    "warn_at_the_edge",
]
