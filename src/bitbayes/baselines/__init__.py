"""What the paper compares with."""

from bitbayes.baselines.temperature import TemperatureScaling

__all__ = ["TemperatureScaling"]
