"""Tuning: what a candidate costs (objectives), which are tried (search), on which outliers (noise)."""

from bitbayes.tuning.objectives import objective_for
from bitbayes.tuning.search import warn_at_the_edge
from bitbayes.tuning.tune import tune_by_evidence, tune_on_data

__all__ = ["objective_for", "tune_by_evidence", "tune_on_data", "warn_at_the_edge"]
