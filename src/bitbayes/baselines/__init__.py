"""What the paper compares with."""

from bitbayes.baselines.deep_kernel import DeepKernel
from bitbayes.baselines.temperature import TemperatureScaling

__all__ = ["DeepKernel", "TemperatureScaling"]
