"""Fitting: one pass over data → all that is learned from it, by one process or by many."""

from bitbayes.fitting.data import Checkpointer, FitRequest, Totals
from bitbayes.fitting.joint import fit_jointly

__all__ = ["Checkpointer", "FitRequest", "Totals", "fit_jointly"]
