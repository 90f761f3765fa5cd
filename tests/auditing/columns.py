"""Audits by the numbers of their columns, to see what is said about them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from auditing.round_numbers import make_audit, outlier_scores, outlier_set, ranking, scores_on_test
from bitbayes.auditing.findings import (
    COMPARED_ON_OUTLIERS,
    COMPARED_ON_TEST,
    OutlierGroup,
    OutlierScores,
    OutlierSet,
    TestScores,
)
from bitbayes.auditing.report import AuditReport

LARGER_IS_BETTER = ("accuracy", "auroc")
# Whether the difference of a measure of two columns is beyond the bootstrap.
Clear = Callable[[str, str, str], bool]


def always(name: str, other: str, measure: str) -> bool:
    return True


def against(numbers: Mapping[str, Mapping[str, float]], name: str, clear: Clear) -> dict[str, dict[str, str]]:
    """What `TestScores.against` holds for a column, from the numbers of all columns."""

    def change(other: str, measure: str) -> str:
        mine, theirs = numbers[name].get(measure, 0.0), numbers[other].get(measure, 0.0)
        if mine == theirs or not clear(*sorted((name, other)), measure):
            return "same"
        return "better" if (mine > theirs) == (measure in LARGER_IS_BETTER) else "worse"

    measures = COMPARED_ON_OUTLIERS if "auroc" in numbers[name] else COMPARED_ON_TEST
    return {other: {m: change(other, m) for m in measures} for other in numbers if other != name}


def on_test(columns: Mapping[str, tuple[float, float, float]], clear: Clear) -> dict[str, TestScores]:
    """The scores of columns of (log loss, ECE, accuracy). Up to 1.2%, an ECE is within noise."""
    names = ("nll", "ece", "accuracy")
    numbers = {name: dict(zip(names, given, strict=True)) for name, given in columns.items()}
    found = {}
    for name, each in numbers.items():
        scores = scores_on_test(each["accuracy"], each["accuracy"], each["ece"])
        intervals = scores.intervals | {"nll": [each["nll"] - 0.02, each["nll"] + 0.02]}
        found[name] = replace(
            scores, nll=each["nll"], intervals=intervals, against=against(numbers, name, clear)
        )
    return found


def on_outliers(columns: Mapping[str, tuple[float, float]], clear: Clear) -> dict[str, OutlierScores]:
    """The scores of columns of (AUROC, FPR95)."""
    numbers = {name: {"auroc": auroc, "fpr95": fpr95} for name, (auroc, fpr95) in columns.items()}
    return {
        name: replace(
            outlier_scores(0.5, each["auroc"], each["fpr95"]), against=against(numbers, name, clear)
        )
        for name, each in numbers.items()
    }


def audit_of(
    normal: Mapping[str, tuple[float, float, float]],
    *,
    unfamiliar: Mapping[str, tuple[float, float]] | None = None,
    far: Mapping[str, tuple[float, float]] | None = None,
    given: bool = True,
    clear: Clear = always,
    validation: tuple[int, int] = (1000, 50),
    **changes: Any,
) -> AuditReport:
    """An audit of columns: on the test data (log loss, ECE, accuracy), and on outliers (AUROC, FPR95).

    "bitbayes" is ours if it is there, and the first column is the base. `validation` has the number of
    points, and of those that are wrong.
    """
    groups: dict[str, OutlierGroup] = {}
    sets: list[OutlierSet] = []
    for kind, columns in (("unfamiliar", unfamiliar), ("far", far)):
        if columns:
            scores = on_outliers(columns, clear)
            groups[kind] = OutlierGroup([kind], scores)
            name = "far" if kind == "far" else "given" if given else "noise"
            sets.append(outlier_set(kind, name, **scores))
    audit = make_audit()
    return replace(
        audit,
        base=next(iter(normal)),
        ours="bitbayes" if "bitbayes" in normal else None,
        sizes=audit.sizes | {"validation": validation[0]},
        errors=audit.errors | {"validation": validation[1]},
        test=on_test(normal, clear),
        rankings={name: ranking("energy" if name == "energy" else "confidence") for name in normal},
        outliers=sets,
        groups=groups,
        **changes,
    )
