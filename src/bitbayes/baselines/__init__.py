"""Methods to compare with: temperature scaling, detectors of outliers, and deep kernel learning.

Deep kernel learning, which the paper compares with, needs the extra `dkl`.
"""

from typing import TYPE_CHECKING

from bitbayes.baselines import detectors
from bitbayes.baselines.temperature import TemperatureScaling

if TYPE_CHECKING:
    from bitbayes.reproduction.deep_kernel import DeepKernel

__all__ = ["DeepKernel", "TemperatureScaling", "detectors"]


if not TYPE_CHECKING:  # a type checker that sees this function takes every misspelt name for a public one

    def __getattr__(name: str) -> object:
        if name == "DeepKernel":  # needs the paper's recipes, which `import bitbayes` does not import
            from bitbayes.reproduction.deep_kernel import DeepKernel

            return DeepKernel
        raise AttributeError(f"module 'bitbayes.baselines' has no attribute {name!r}")
