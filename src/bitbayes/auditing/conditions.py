"""Conditions on the numbers of an audit, such as "ece > 0.05", for continuous integration.

A condition is NAME > VALUE or NAME < VALUE (or >=, <=). A name is one of `MEASURES`, and is that of bitbayes
unless a method stands before it, as in "plain.ece". A value is a number, a percentage, or another name.
"""

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from bitbayes.auditing.findings import AUDITED_METHODS, Audit
from bitbayes.errors import ArgumentError

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}
# The name of each measure, and what it is.
MEASURES = {
    "accuracy": "of the test data",
    "confidence": "mean confidence on the test data",
    "ece": "calibration error on the test data",
    "nll": "log loss on the test data",
    "brier": "Brier score on the test data",
    "auroc": "the worst AUROC over the unfamiliar sets",
    "fpr95": "the worst FPR95 over the unfamiliar sets",
    "far-auroc": "the worst AUROC over the far-away sets",
    "far-fpr95": "the worst FPR95 over the far-away sets",
    "far-confidence": "the largest mean confidence over the far-away sets",
}
# The measures that are not between 0 and 1.
NOT_RATES = ("nll", "brier")
FORM = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=|>|<)\s*([^\s<>=]+(?:\s+%)?)\s*")


@dataclass(frozen=True)
class Condition:
    """A condition that was written as `text`."""

    text: str
    left: str
    comparison: str
    right: str | float


def parse_condition(text: str) -> Condition:
    """Read a condition. A mistake raises before any work is done.

    >>> parse_condition("ece > 5%")
    Condition(text='ece > 5%', left='bitbayes.ece', comparison='>', right=0.05)
    >>> parse_condition("auroc<plain.auroc").right
    'plain.auroc'
    >>> parse_condition("acuracy<0.9")
    Traceback (most recent call last):
    ...
    bitbayes.errors.ArgumentError: 'acuracy' in 'acuracy<0.9' is no measure: did you mean 'accuracy'? ...
    """
    match = FORM.fullmatch(text)
    if not match:
        raise ArgumentError(
            f"{text!r} is no condition: write a measure, >, >=, < or <=, and a number, such as 'ece>0.05'"
        )
    left, comparison, right = match.groups()
    condition = Condition(text, _read_name(left, text), comparison, _read_value(right, text))
    rate = condition.left.partition(".")[2] not in NOT_RATES
    limit = condition.right
    if isinstance(limit, float) and (math.isnan(limit) or (rate and limit > 1)):
        expected = "a rate is between 0 and 1, or a percentage such as 5%" if rate else "give a number"
        raise ArgumentError(f"{right!r} in {text!r} would decide nothing: {expected}")
    return condition


def check_conditions(audit: Audit, conditions: list[Condition]) -> list[str]:
    """Return a line for each condition that holds. One that cannot be checked counts as if it held."""
    lines = []
    for condition in conditions:
        name, limit = condition.left, condition.right
        try:
            left = _value(audit, name)
            right = limit if isinstance(limit, float) else _value(audit, limit)
        except LookupError as error:
            lines.append(f"{condition.text}: cannot be checked, {error.args[0]}")
            continue
        if COMPARISONS[condition.comparison](left, right):
            other = "" if isinstance(limit, float) else f", {limit} is {right:.4g}"
            lines.append(f"{condition.text}: {name} is {left:.4g}{other}")
    return lines


def _read_value(text: str, condition: str) -> str | float:
    number, is_percentage = text.removesuffix("%"), text.endswith("%")
    try:
        return float(number) / 100 if is_percentage else float(number)
    except ValueError:
        return _read_name(text, condition)


def _read_name(text: str, condition: str) -> str:
    method, dot, measure = text.rpartition(".")
    method = method if dot else "bitbayes"
    if method not in AUDITED_METHODS:
        raise ArgumentError(
            f"{method!r} in {condition!r} is no method: the methods are {', '.join(AUDITED_METHODS)}"
        )
    if measure not in MEASURES:
        near = difflib.get_close_matches(measure, MEASURES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ArgumentError(
            f"{measure!r} in {condition!r} is no measure: {hint}The measures are {', '.join(MEASURES)}"
        )
    return f"{method}.{measure}"


def _value(audit: Audit, name: str) -> float:
    method, _, measure = name.partition(".")
    if method not in audit.methods:
        raise LookupError(f"since {method!r} was left out")
    if measure in ("accuracy", "confidence", "ece", "nll", "brier"):
        return float(getattr(audit.test[method], measure))
    group, score = ("far", measure[4:]) if measure.startswith("far-") else ("unfamiliar", measure)
    if group not in audit.groups:
        raise LookupError(f"since there are no {'far-away' if group == 'far' else group} inputs")
    names = audit.groups[group].sets
    values = [getattr(each.scores[method], score) for each in audit.outliers if each.name in names]
    return float(min(values) if score == "auroc" else max(values))
