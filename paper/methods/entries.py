"""The methods of the tables, by name and in their order."""

from collections.abc import Callable
from dataclasses import dataclass

import bitbayes as bb
from bitbayes.baselines.detectors import DETECTORS
from paper.kron import PaperKronCurvature
from paper.methods.all_layers import Linearised, SampledNetworks
from paper.methods.base import Method
from paper.methods.default import Default
from paper.methods.detectors import Detector
from paper.methods.last_layer import LastLayer, points_of_a_running_mean
from paper.methods.plain import Plain, Temperature

# The paper's two structures over all layers; it draws one label for each point.
PAPER_DIAG = {"structure": "diag", "curvature": bb.Fisher()}
PAPER_KRON = {"structure": PaperKronCurvature.structure, "curvature": bb.Fisher()}
# Its text asks noise for a high entropy. Its code asks for a small cross-entropy from the uniform
# distribution, with twice the weight for two classes.
CODE_OBJECTIVE = "LLLA, the objective of its code"
BINARY_CODE_WEIGHT = 0.5


@dataclass(frozen=True)
class MethodEntry:
    """A method in a table."""

    title: str
    paper_column: str | None  # its column in the paper's tables
    make: Callable[[int], Method]  # takes the number of points on which sampled networks are tuned


MULTICLASS = {
    "plain": MethodEntry("Plain network", "MAP", lambda points: Plain()),
    "temperature": MethodEntry("Temperature scaling", "Temp", lambda points: Temperature()),
    "llla": MethodEntry(
        "LLLA (paper's)",
        "LLLA",
        lambda points: LastLayer(own_score=False, structure="paper-kron", predictive="mc"),
    ),
    "llla-code": MethodEntry(
        CODE_OBJECTIVE,
        None,
        lambda points: LastLayer(own_score=False, penalty="uniform", structure="paper-kron", predictive="mc"),
    ),
    "dla": MethodEntry("DLA (paper's)", "DLA", lambda points: SampledNetworks(points, **PAPER_DIAG)),
    "kfla": MethodEntry("KFLA (paper's)", "KFLA", lambda points: SampledNetworks(points, **PAPER_KRON)),
    "dla-linear": MethodEntry(
        "DLA, linearised", None, lambda points: Linearised("ood", residual=False, **PAPER_DIAG)
    ),
    "kfla-linear": MethodEntry(
        "KFLA, linearised", None, lambda points: Linearised("ood", residual=False, **PAPER_KRON)
    ),
    "ours": MethodEntry("Last layer, paper's objective", None, lambda points: LastLayer()),
    "default": MethodEntry("bitbayes (default)", None, lambda points: Default()),
    "default-all": MethodEntry("bitbayes, all layers", None, lambda points: Linearised("calibrated")),
}
LINEARISED = ("dla-linear", "kfla-linear", "default-all")
MULTICLASS |= {
    name: MethodEntry(each.title, None, lambda points, name=name: Detector(name))  # type: ignore[misc]
    for name, each in DETECTORS.items()
}
BINARY = {
    "plain": MULTICLASS["plain"],
    "temperature": MULTICLASS["temperature"],
    "llla": MethodEntry("LLLA (paper's)", "LLLA", lambda points: LastLayer(own_score=False)),
    "llla-code": MethodEntry(
        CODE_OBJECTIVE,
        None,
        lambda points: LastLayer(own_score=False, penalty="uniform", weight=BINARY_CODE_WEIGHT),
    ),
    "llla-code-curvature": MethodEntry(
        "LLLA, objective and curvature of its code",
        None,
        lambda points: LastLayer(
            own_score=False,
            penalty="uniform",
            weight=BINARY_CODE_WEIGHT,
            curvature_points=points_of_a_running_mean,
        ),
    ),
    "ours": MethodEntry("LLLA, exact integral", None, lambda points: LastLayer(predictive="quadrature")),
    "default": MULTICLASS["default"],
}
