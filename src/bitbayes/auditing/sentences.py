"""The findings in three sentences, for readers who know no statistics."""

import math

from bitbayes.auditing.findings import Audit, TestScores
from bitbayes.auditing.words import join_names, percent

NOTICEABLE_DIFFERENCE = 0.005  # of two rates: half a percentage point


def summarise(audit: Audit) -> list[str]:
    """Return a sentence on familiar inputs, one on unfamiliar inputs, and one on what bitbayes changes."""
    return [_describe_familiar(audit), _describe_unfamiliar(audit), _describe_change(audit)]


def calibration_gap(scores: TestScores, n: int) -> float:
    """Return the mean confidence minus the accuracy, or 0 if that difference is not worth mentioning.

    It is not worth mentioning within two standard errors of the accuracy on n inputs, or within
    `NOTICEABLE_DIFFERENCE`.
    """
    gap = scores.confidence - scores.accuracy
    two_standard_errors = 2 * math.sqrt(scores.accuracy * (1 - scores.accuracy) / n)
    return 0.0 if abs(gap) <= max(two_standard_errors, NOTICEABLE_DIFFERENCE) else gap


def _describe_familiar(audit: Audit) -> str:
    n, plain = audit.sizes["test"], audit.test["plain"]
    gap = calibration_gap(plain, n)
    verdict = _choose(
        gap,
        lower=f"it is underconfident by {percent(abs(gap))} percentage points",
        equal="that is as sure as it deserves to be",
        higher=f"it is overconfident by {percent(abs(gap))} percentage points",
    )
    return (
        f"On {n:,} test inputs of the kind it was trained for, the plain network is right "
        f"{percent(plain.accuracy)} % of the time and claims to be {percent(plain.confidence)} % sure on "
        f"average: {verdict}."
    )


def _describe_unfamiliar(audit: Audit) -> str:
    # The user's own outliers say most. Generated ones stand in for them if there are none.
    outliers = [outlier for outlier in audit.outliers if outlier.kind == "given"] or audit.outliers
    if not outliers:
        return "There were no unfamiliar inputs to try it on: give some as “outliers” to learn more."
    names = join_names([outlier.name for outlier in outliers])
    plain, ours = (
        sum(outlier.scores[method].confidence for outlier in outliers) / len(outliers)
        for method in ("plain", "bitbayes")
    )
    effect = _choose(
        ours - plain,
        lower=f"bitbayes brings that down to {percent(ours)} %",
        equal=f"bitbayes hardly changes that ({percent(ours)} %)",
        higher=f"bitbayes makes that worse, {percent(ours)} %",
    )
    return (
        f"Shown things that belong to none of its classes ({names}), the plain network still claims to be "
        f"{percent(plain)} % sure on average; {effect}, where a blind guess among {audit.classes} classes "
        f"would be {percent(1 / audit.classes)} % sure."
    )


def _describe_change(audit: Audit) -> str:
    n, plain, ours = audit.sizes["test"], audit.test["plain"], audit.test["bitbayes"]
    changed = f"{audit.changed_labels:,}" if audit.changed_labels else "none"
    calibration = _choose(
        ours.ece - plain.ece,
        lower="its confidence fits its record better than before",
        equal="its confidence fits its record as well as before",
        higher="its confidence fits its record less well than before",
    )
    return (
        f"On the test inputs bitbayes changes {changed} of {n:,} answers, is right "
        f"{percent(ours.accuracy)} % of the time and claims to be {percent(ours.confidence)} % sure: "
        f"{calibration} (calibration error {percent(ours.ece)} % after, {percent(plain.ece)} % before)."
    )


def _choose(difference: float, *, lower: str, equal: str, higher: str) -> str:
    """Return the words for a rate that is noticeably lower than another, about equal, or higher."""
    if abs(difference) <= NOTICEABLE_DIFFERENCE:
        return equal
    return higher if difference > 0 else lower
