"""bitbayes: honest confidence for any trained classifier, after training, in one pass over the data."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bitbayes import errors
from bitbayes._version import __version__
from bitbayes.errors import BitbayesError

if TYPE_CHECKING:
    from bitbayes import (
        baselines,
        lightning,
        likelihoods,
        metrics,
        openood,
        outliers,
        palette,
        plots,
        sklearn,
        structures,
        toys,
        transformers,
    )
    from bitbayes.auditing import Predictor, audit
    from bitbayes.baselines import TemperatureScaling
    from bitbayes.decisions.risk_threshold import RiskThreshold
    from bitbayes.evidence import EvidenceTraining, train_by_evidence
    from bitbayes.laplace import Laplace
    from bitbayes.logits import LogitGaussian
    from bitbayes.merging import merge
    from bitbayes.options import Draws, Fisher
    from bitbayes.passed_points import PassedPoints
    from bitbayes.processes import process_group
    from bitbayes.regression import Prediction
    from bitbayes.settings import Settings
    from bitbayes.uncertainty import Uncertainty

__all__ = [
    "BitbayesError",
    "Draws",
    "EvidenceTraining",
    "Fisher",
    "Laplace",
    "LogitGaussian",
    "PassedPoints",
    "Prediction",
    "Predictor",
    "RiskThreshold",
    "Settings",
    "TemperatureScaling",
    "Uncertainty",
    "__version__",
    "audit",
    "baselines",
    "errors",
    "lightning",
    "likelihoods",
    "merge",
    "metrics",
    "openood",
    "outliers",
    "palette",
    "plots",
    "process_group",
    "sklearn",
    "structures",
    "toys",
    "train_by_evidence",
    "transformers",
]

# The modules that hold the public classes and functions. Every other public name is a module itself.
_HOMES = {
    "Draws": "options",
    "EvidenceTraining": "evidence",
    "Fisher": "options",
    "Laplace": "laplace",
    "LogitGaussian": "logits",
    "PassedPoints": "passed_points",
    "Prediction": "regression",
    "Predictor": "auditing",
    "RiskThreshold": "decisions.risk_threshold",
    "Settings": "settings",
    "TemperatureScaling": "baselines",
    "Uncertainty": "uncertainty",
    "audit": "auditing",
    "merge": "merging",
    "process_group": "processes",
    "train_by_evidence": "evidence",
}

if not TYPE_CHECKING and find_spec("sklearn") is None:  # for `import *` and `help`, which import every name
    __all__.remove("sklearn")

if not TYPE_CHECKING:  # a type checker that sees this function takes every misspelt name for a public one

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used.

        So `bitbayes --version` does without torch, which takes seconds to import, and `import bitbayes` does
        without matplotlib and the libraries that only some people have.
        """
        if name not in (*__all__, "sklearn"):
            raise AttributeError(f"module 'bitbayes' has no attribute {name!r}")
        home = _HOMES.get(name)
        found = import_module(f"bitbayes.{home or name}")
        if home is not None:
            found = globals()[name] = getattr(found, name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
