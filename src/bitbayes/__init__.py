"""bitbayes: honest confidence for any trained classifier, after training, in one pass over the data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bitbayes import baselines, metrics, outliers
from bitbayes._version import __version__
from bitbayes.baselines import TemperatureScaling
from bitbayes.errors import BitbayesError
from bitbayes.laplace import Laplace
from bitbayes.logits import LogitGaussian
from bitbayes.merging import merge
from bitbayes.options import Fisher
from bitbayes.processes import process_group
from bitbayes.uncertainty import Uncertainty

if TYPE_CHECKING:
    from bitbayes import data, lightning, networks, openood, paper, sklearn, training, transformers
    from bitbayes.auditing import audit

# What re-runs the paper is a third of the code and needed by few, and those for other libraries load all of
# these: all are imported when they are asked for.
_LOADED_WHEN_ASKED_FOR = (
    *("data", "networks", "paper", "training"),
    *("lightning", "openood", "sklearn", "transformers"),
)

__all__ = [
    "BitbayesError",
    "Fisher",
    "Laplace",
    "LogitGaussian",
    "TemperatureScaling",
    "Uncertainty",
    "__version__",
    "audit",
    "baselines",
    "data",
    "lightning",
    "merge",
    "metrics",
    "networks",
    "openood",
    "outliers",
    "paper",
    "process_group",
    "sklearn",
    "training",
    "transformers",
]


def __getattr__(name: str) -> Any:
    if name == "audit":  # a function: few programs call it, and it loads templates
        return import_module("bitbayes.auditing").audit
    if name in _LOADED_WHEN_ASKED_FOR:
        return import_module(f"bitbayes.{name}")
    raise AttributeError(f"module 'bitbayes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOADED_WHEN_ASKED_FOR, "audit"})
