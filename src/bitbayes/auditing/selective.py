"""What is gained if the least sure inputs are handed to a person, and a threshold with a guaranteed risk."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from bitbayes import metrics
from bitbayes.auditing.data_checks import many_copies
from bitbayes.auditing.findings import KEPT_SHARES, DataChecks, Promise
from bitbayes.auditing.predictions import Predictions
from bitbayes.decisions.binomial import least_points
from bitbayes.errors import BitbayesError
from bitbayes.laplace import Laplace

# The error rates that may be promised. Which one it is must not depend on the test data's labels.
RISKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
LEVEL = 0.95


def score_selective(predicted: Predictions, labels: Tensor) -> dict[str, list[float]]:
    """Return for each method the error rate among each of `KEPT_SHARES` of the inputs, the surest first."""
    n = len(labels)
    places = torch.tensor([max(1, round(share * n)) - 1 for share in KEPT_SHARES])
    found = {}
    for method, (probs, _) in predicted.items():
        confidence, answers = probs.max(1)
        found[method] = metrics.risk_coverage(confidence, answers == labels).risk[places].tolist()
    return found


def promise_risk(
    bayes: Laplace, test: Iterable[Any], error: float, checks: DataChecks, sizes: Mapping[str, int]
) -> Promise:
    """Find the threshold with a guaranteed error rate on the test data, which must have tuned nothing.

    Args:
        bayes: a tuned `Laplace`.
        test: the loader.
        error: the error rate of bitbayes on the validation data.
        checks: what was noticed about the data.
        sizes: of the sets.
    """
    n = sizes["test"]
    risk = risk_to_promise(error, n)
    for name in ("test in train", "test in validation"):
        if many_copies(checks, sizes, name):
            _, _, other = name.split()
            data = {"train": "training", "validation": "validation"}[other]
            return Promise(risk, LEVEL, n, reason=f"some test inputs are copies of {data} inputs")
    try:
        found = bayes.threshold(test, risk=risk, level=LEVEL, progress=False)
    except BitbayesError as refusal:
        return Promise(risk, LEVEL, n, reason=str(refusal))
    return Promise(risk, LEVEL, found.points, float(found), found.accepted, int(found.errors))


def risk_to_promise(validation_error: float, n: int) -> float:
    """Return the smallest of `RISKS` that is half the error rate on the validation data, or more.

    Half of the n test inputs must be enough for it if none of them is answered wrong.

    >>> risk_to_promise(0.015, 1000), risk_to_promise(0.015, 200), risk_to_promise(0.3, 1000)
    (0.01, 0.05, 0.2)
    """
    enough = (risk for risk in RISKS if least_points(risk, 1 - LEVEL) <= n / 2)
    return next((risk for risk in enough if risk >= validation_error / 2), RISKS[-1])
