"""Conditions on the numbers of an audit, such as "ece > 0.05", for continuous integration.

A condition is NAME > VALUE or NAME < VALUE (or >=, <=). A name is one of `MEASURES`. It is that of bitbayes,
or of the first column if there is no bitbayes, unless a column's name stands before it, as in "plain.ece".
That name may hold any characters. A value is a number, a percentage, or another name.
"""

import difflib
import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from bitbayes.auditing.findings import Audit
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
    "nll": "log loss on the test data",
    "brier": "Brier score on the test data",
    "brier-calibration": "the part of the Brier score that calibration adds",
    "brier-refinement": "the part of the Brier score that mixed labels add",
    "ece": "calibration error on the test data",
    "floor": "the mean calibration error that perfect calibration would show",
    "smooth-ece": "smooth calibration error on the test data",
    "debiased-rmsce": "debiased calibration error on the test data",
    "classwise-ece": "class-wise calibration error on the test data",
    "aurc": "area under the risk-coverage curve on the test data",
    "augrc": "area under the generalised risk-coverage curve on the test data",
    "auroc": "the worst AUROC over the unfamiliar sets",
    "fpr95": "the worst FPR95 over the unfamiliar sets",
    "far-auroc": "the worst AUROC over the far-away sets",
    "far-fpr95": "the worst FPR95 over the far-away sets",
    "far-confidence": "the largest mean confidence over the far-away sets",
}
ON_OUTLIERS = ("auroc", "fpr95", "far-auroc", "far-fpr95", "far-confidence")
# The measures that are not between 0 and 1.
NOT_RATES = ("nll", "brier", "brier-calibration", "brier-refinement")
# A column's name and a dot, if any; the measure; the comparison; what it is compared with.
FORM = re.compile(r"\s*(?:(.+)\.)?([\w-]+)\s*(>=|<=|>|<)\s*(.+?)\s*", re.DOTALL)
NUMBER = re.compile(r"([^\s<>=]+?)\s*(%?)")
NAME = re.compile(r"(?:(.+)\.)?([\w-]+)", re.DOTALL)


@dataclass(frozen=True)
class Name:
    """A measure, and the column that it is of; None is bitbayes, or the first column."""

    measure: str
    method: str | None = None

    def of(self, audit: Audit) -> str:
        """The method in an audit."""
        return self.method or audit.ours or audit.base


@dataclass(frozen=True)
class Condition:
    """A condition that was written as `text`."""

    text: str
    left: Name
    comparison: str
    right: Name | float


def parse_condition(text: str) -> Condition:
    """Read a condition. A mistake raises before any work is done.

    >>> parse_condition("ece > 5%")
    Condition(text='ece > 5%', left=Name(measure='ece', method=None), comparison='>', right=0.05)
    >>> parse_condition("auroc<plain.auroc").right
    Name(measure='auroc', method='plain')
    >>> parse_condition("acuracy<0.9")
    Traceback (most recent call last):
    ...
    bitbayes.errors.ArgumentError: 'acuracy' in 'acuracy<0.9' is no measure: did you mean 'accuracy'? ...
    """
    match = FORM.fullmatch(text)
    value = None if match is None else _read_value(match[4], text)
    if match is None or value is None:
        raise ArgumentError(
            f"{text!r} is no condition: write a measure, >, >=, < or <=, and a number, such as 'ece>0.05'"
        )
    method, measure, comparison, right = match.groups()
    condition = Condition(text, Name(_check_measure(measure, text), method), comparison, value)
    rate = measure not in NOT_RATES
    if isinstance(value, float) and (math.isnan(value) or (rate and value > 1)):
        expected = "a rate is between 0 and 1, or a percentage such as 5%" if rate else "give a number"
        raise ArgumentError(f"{right!r} in {text!r} would decide nothing: {expected}")
    return condition


def check_columns(conditions: list[Condition], columns: Collection[str]) -> None:
    """Raise if a condition names a column that the audit will not have."""
    for condition in conditions:
        for name in (condition.left, condition.right):
            if isinstance(name, Name) and name.method is not None and name.method not in columns:
                near = difflib.get_close_matches(name.method, columns, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ArgumentError(
                    f"{name.method!r} in {condition.text!r} is no column: {hint}The columns are "
                    f"{', '.join(columns)}"
                )


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
            other = "" if isinstance(limit, float) else f", {_full(audit, limit)} is {right:.4g}"
            lines.append(f"{condition.text}: {_full(audit, name)} is {left:.4g}{other}")
    return lines


def _read_value(text: str, condition: str) -> Name | float | None:
    """Return the number or the name on the right of a condition; None if it is neither."""
    if number := NUMBER.fullmatch(text):
        try:
            return float(number[1]) / 100 if number[2] else float(number[1])
        except ValueError:
            pass  # it is a name
    name = NAME.fullmatch(text)
    return None if name is None else Name(_check_measure(name[2], condition), name[1])


def _check_measure(measure: str, condition: str) -> str:
    if measure not in MEASURES:
        near = difflib.get_close_matches(measure, MEASURES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ArgumentError(
            f"{measure!r} in {condition!r} is no measure: {hint}The measures are {', '.join(MEASURES)}"
        )
    return measure


def _full(audit: Audit, name: Name) -> str:
    return f"{name.of(audit)}.{name.measure}"


def _value(audit: Audit, name: Name) -> float:
    method, measure = name.of(audit), name.measure
    if method not in audit.test and method not in audit.details:
        raise LookupError(f"since {method!r} was left out")
    if measure not in ON_OUTLIERS:
        scores = audit.test[method] if method in audit.test else audit.details[method].test
        return float(getattr(scores, measure.replace("-", "_")))
    group, score = ("far", measure[4:]) if measure.startswith("far-") else ("unfamiliar", measure)
    if group not in audit.groups:
        raise LookupError(f"since there are no {'far-away' if group == 'far' else group} inputs")
    values = []
    for each in audit.outliers:
        if each.name in audit.groups[group].sets:
            own = each.scores[method] if method in each.scores else audit.details[method].outliers[each.name]
            values.append(float(getattr(own, score)))
    return min(values) if score == "auroc" else max(values)
