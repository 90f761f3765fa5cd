"""Fitting: one pass over data → all that is learned from it, by one process or by many."""

from bitbayes.fitting.data import FitRequest, Checkpointer, Totals
from bitbayes.fitting.joint import fit_jointly

__all__ = ["FitRequest", "Checkpointer", "Totals", "fit_jointly"]
