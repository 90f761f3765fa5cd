"""Pictures of predictions and their confidence. Each function draws on matplotlib axes and returns them.

`import bitbayes` does not import this module or matplotlib; the first use of `bb.plots` does. All functions
take `ax=`, the axes to draw on. Without it they make a new figure. A method has the same colour in all
pictures (`COLOURS`): bitbayes is blue, the plain network is grey.
"""

from bitbayes.plots.confidence_along_rays import confidence_along_rays
from bitbayes.plots.coverage_curve import coverage_curve
from bitbayes.plots.histograms import histograms
from bitbayes.plots.intervals import intervals
from bitbayes.plots.reliability import reliability
from bitbayes.plots.risk_coverage import risk_coverage
from bitbayes.plots.style import COLOURS
from bitbayes.plots.toy_map import toy_map
from bitbayes.plots.trade_off import trade_off

__all__ = [
    "COLOURS",
    "confidence_along_rays",
    "coverage_curve",
    "histograms",
    "intervals",
    "reliability",
    "risk_coverage",
    "toy_map",
    "trade_off",
]
