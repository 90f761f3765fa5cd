"""What the paper compares with: temperature scaling, and deep kernel learning (the extra `dkl`)."""

from typing import TYPE_CHECKING, Any

from bitbayes.baselines.temperature import TemperatureScaling

if TYPE_CHECKING:
    from bitbayes.reproduction.deep_kernel import DeepKernel

__all__ = ["DeepKernel", "TemperatureScaling"]


def __getattr__(name: str) -> Any:
    if name == "DeepKernel":  # trained by the paper's recipes, which `import bitbayes` leaves alone
        from bitbayes.reproduction.deep_kernel import DeepKernel

        return DeepKernel
    raise AttributeError(f"module 'bitbayes.baselines' has no attribute {name!r}")
