"""Fitting: one pass over data → all that is learned from it, by one process or by many."""

from bitbayes.fitting.joint import fit_jointly
from bitbayes.fitting.request import FitRequest, Keeper, Totals

__all__ = ["FitRequest", "Keeper", "Totals", "fit_jointly"]
