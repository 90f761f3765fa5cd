"""What people would choose instead: temperature scaling, and detectors of outliers."""

from bitbayes.baselines import detectors
from bitbayes.baselines.temperature import TemperatureScaling

__all__ = ["TemperatureScaling", "detectors"]
