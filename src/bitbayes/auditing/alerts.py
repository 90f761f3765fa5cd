"""Alerts: what makes the numbers of an audit less sure than they look, and what to do about it."""

from dataclasses import dataclass

from bitbayes.auditing.data_checks import many_copies
from bitbayes.auditing.findings import Audit, LabelShift
from bitbayes.auditing.relations import within_noise
from bitbayes.auditing.verdict import FEW_VALIDATION, has_given
from bitbayes.auditing.words import join_names, per_hundred, percent

MOST_NAMED = 5  # classes
MOST_REFUSED = 0.2  # of slightly scaled test inputs that are answered right


@dataclass(frozen=True)
class Alert:
    """One alert: what it is about, in a word; a sentence; and what to do.

    `kind` is "validation", "edge", "noise", "outliers", "scaled", "classes", "copies" or "labels".
    """

    kind: str
    text: str
    remedy: str


def find_alerts(audit: Audit) -> list[Alert]:
    """Return the alerts of an audit; those that put all of its numbers in doubt come first."""
    return [
        *_about_labels(audit),
        *_about_copies(audit),
        *_about_classes(audit),
        *_about_validation(audit),
        *_about_edges(audit),
        *_about_scaled(audit),
        *_about_noise(audit),
        *_about_outliers(audit),
    ]


def _about_labels(audit: Audit) -> list[Alert]:
    shift = audit.checks.shift
    if shift is None:
        return []
    text = (
        f"Labels look shifted: accuracy is {percent(shift.accuracy)}%, and would be "
        f"{percent(shift.other_accuracy)}% if {_describe_shift(shift, audit.class_names)}."
    )
    return [Alert("labels", text, "Check how the classes are numbered, here and in training.")]


def _describe_shift(shift: LabelShift, names: list[str]) -> str:
    if shift.by is not None:
        less = len(names) - shift.by
        amount, word = (shift.by, "more") if shift.by <= less else (less, "less")
        around = "(modulo the number of classes)"
        return f"each label were {amount} {word} {around}"
    moved = [f"{names[label]} were {names[other]}" for label, other in shift.moved[:MOST_NAMED]]
    more = f" and {len(shift.moved) - MOST_NAMED} more moved" if len(shift.moved) > MOST_NAMED else ""
    return f"{', '.join(moved)}{more}"


def _about_copies(audit: Audit) -> list[Alert]:
    effects = {
        "validation in train": ("training", "What is tuned on them is too sure."),
        "test in train": ("training", "The scores are too good."),
        "test in validation": ("validation", "The scores of what is tuned there are too good."),
    }
    alerts = []
    for name, count in audit.checks.copies.items():
        one, (other, effect) = name.split()[0], effects[name]
        size = audit.sizes[one]
        if many_copies(audit.checks, audit.sizes, name):
            text = f"{count:,} of {size:,} {one} inputs are copies of {other} inputs. {effect}"
            alerts.append(
                Alert(
                    "copies", text, "Split again without copies (in tables of few values some are natural)."
                )
            )
    return alerts


def _about_classes(audit: Audit) -> list[Alert]:
    alerts = []
    for name, missing in audit.checks.missing.items():
        if missing:
            named = [audit.class_names[label] for label in missing[:MOST_NAMED]]
            if len(missing) > MOST_NAMED:
                named.append(f"{len(missing) - MOST_NAMED:,} more")
            them = "it" if len(missing) == 1 else "them"
            what = f"tuned for {them}" if name == "validation" else f"known about {them}"
            text = f"No {name} input of {join_names(named)}: nothing is {what}."
            alerts.append(Alert("classes", text, "Draw the sets so that each has all classes."))
    return alerts


def _about_validation(audit: Audit) -> list[Alert]:
    n, errors = audit.sizes.get("validation", 0), audit.errors.get("validation")
    if not n:
        return []
    if errors == 0:
        text = f"All {n:,} validation points are right: they cannot choose a temperature."
        remedy = (
            "Give some hundred." if n < FEW_VALIDATION else "Are they training data? Give others, or more."
        )
        return [Alert("validation", text, remedy)]
    if n >= FEW_VALIDATION:
        return []
    wrong = "" if errors is None else f", {errors:,} of them wrong"
    text = f"Only {n:,} validation points{wrong}: what is tuned on them is uncertain."
    return [Alert("validation", text, "Give some hundred.")]


def _about_edges(audit: Audit) -> list[Alert]:
    """Where a search ended at its edge. Without errors to learn from, the alert above says it all."""
    if audit.errors.get("validation") == 0:
        return []
    remedy = "Check that the validation labels fit the model, and that there are some hundred."
    return [Alert("edge", f"{text}.", remedy) for text in audit.checks.edges]


def _about_scaled(audit: Audit) -> list[Alert]:
    """Where bitbayes refuses many right answers as soon as inputs are a little larger than usual."""
    for each in audit.scaled[:1] if audit.ours else []:
        cost = each.refused_right[audit.ours or ""]
        if cost - each.refused_right[audit.base] > MOST_REFUSED:
            text = (
                f"Refusing by the score costs right answers where inputs vary in scale: of 100 test inputs × "
                f"{each.delta:g}, {per_hundred(cost)} are refused although the answer is right."
            )
            return [Alert("scaled", text, "Scale inputs as in training, or refuse by the confidence.")]
    return []


def _about_noise(audit: Audit) -> list[Alert]:
    if not all(within_noise(scores) for scores in audit.test.values()):
        return []
    most = max(scores.floor_interval[1] for scores in audit.test.values())
    text = (
        f"Calibration within noise: with {audit.sizes['test']:,} test inputs, a calibrated model would show "
        f"an ECE of up to {percent(most)}%, and no column shows more than chance."
    )
    return [Alert("noise", text, "Compare log losses, or give more test inputs.")]


def _about_outliers(audit: Audit) -> list[Alert]:
    if has_given(audit):
        return []
    made_up = "noise takes their place" if "unfamiliar" in audit.groups else "refusing was not tested"
    text = f"No outliers were given: {made_up}."
    return [Alert("outliers", text, 'Give inputs that belong to no class: outliers={"name": inputs}.')]
