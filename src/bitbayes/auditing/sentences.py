"""The three sentences: what was found, in words that need no statistics."""

from __future__ import annotations

import math

from bitbayes.auditing.findings import Audit, OutlierSet, TestScores
from bitbayes.auditing.words import listed, percent

NOTICEABLE = 0.005  # half a percentage point


def sentences(audit: Audit) -> list[str]:
    """On familiar inputs, on unfamiliar ones, and what the Bayesian version costs: one sentence each."""
    return [_familiar(audit), _unfamiliar(audit), _price(audit)]


def familiar_gap(scores: TestScores, n: int) -> float:
    """Mean confidence minus accuracy; 0 where n inputs cannot tell (two standard errors) or nobody cares."""
    gap = scores.confidence - scores.accuracy
    doubt = 2 * math.sqrt(scores.accuracy * (1 - scores.accuracy) / n)
    return 0.0 if abs(gap) <= max(doubt, NOTICEABLE) else gap


def unfamiliar(audit: Audit) -> list[OutlierSet]:
    """The user's own outliers; without any, whatever there is."""
    return [outlier for outlier in audit.outliers if outlier.kind == "given"] or audit.outliers


def mean_confidence(outliers: list[OutlierSet], method: str) -> float:
    """The mean over sets, each counting the same."""
    return sum(outlier.scores[method].confidence for outlier in outliers) / len(outliers)


def _familiar(audit: Audit) -> str:
    n, plain = audit.sizes["test"], audit.test["plain"]
    gap = familiar_gap(plain, n)
    verdict = {
        0: "that is as sure as it deserves to be",
        1: f"it is overconfident by {percent(abs(gap))} percentage points",
        -1: f"it is underconfident by {percent(abs(gap))} percentage points",
    }[_sign(gap)]
    return (
        f"On {n:,} test inputs of the kind it was trained for, the plain network is right "
        f"{percent(plain.accuracy)} % of the time and claims to be {percent(plain.confidence)} % sure on "
        f"average: {verdict}."
    )


def _unfamiliar(audit: Audit) -> str:
    outliers = unfamiliar(audit)
    if not outliers:
        return "There were no unfamiliar inputs to try it on: give some as “outliers” to learn more."
    names = listed([outlier.name for outlier in outliers])
    plain, bayesian = (mean_confidence(outliers, method) for method in ("plain", "bayesian"))
    change = bayesian - plain
    effect = {
        0: f"a bit of Bayes hardly changes that ({percent(bayesian)} %)",
        -1: f"a bit of Bayes brings that down to {percent(bayesian)} %",
        1: f"a bit of Bayes makes that worse, {percent(bayesian)} %",
    }[_sign(change if abs(change) > NOTICEABLE else 0.0)]
    return (
        f"Shown things that belong to none of its classes ({names}), the plain network still claims to be "
        f"{percent(plain)} % sure on average; {effect}, where a blind guess among {audit.classes} classes "
        f"would be {percent(1 / audit.classes)} % sure."
    )


def _price(audit: Audit) -> str:
    n, plain, bayesian = audit.sizes["test"], audit.test["plain"], audit.test["bayesian"]
    change = bayesian.ece - plain.ece
    calibration = {
        0: "its confidence fits its record as well as before",
        -1: "its confidence fits its record better than before",
        1: "its confidence fits its record less well than before",
    }[_sign(change if abs(change) > NOTICEABLE else 0.0)]
    return (
        f"The price: on the test inputs the Bayesian version changes {_count(audit.changed_labels)} of {n:,} "
        f"answers, is right {percent(bayesian.accuracy)} % of the time and claims to be "
        f"{percent(bayesian.confidence)} % sure, so {calibration} "
        f"(calibration error {percent(bayesian.ece)} % after, {percent(plain.ece)} % before)."
    )


def _count(number: int) -> str:
    return f"{number:,}" if number else "none"


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
