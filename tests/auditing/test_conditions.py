from dataclasses import replace

import pytest

from bitbayes.auditing.conditions import MEASURES, check_columns, check_conditions, parse_condition
from bitbayes.auditing.findings import AUDITED_METHODS, Audit
from bitbayes.errors import ArgumentError


def failures(audit: Audit, *texts: str) -> list[str]:
    return check_conditions(audit, [parse_condition(text) for text in texts])


# bitbayes has accuracy 0.895, ECE 0.01, AUROC 0.9 and 1.0 far away.
@pytest.mark.parametrize(
    "text, holds",
    [
        ("ece>0.05", False),
        ("ece > 0.5%", True),
        ("ece>=1%", True),
        ("ece >= 1%", True),  # as the report writes it
        ("accuracy<0.9", True),
        ("accuracy<=0.8", False),
        ("plain.ece>0.05", True),
        ("ece>plain.ece", False),
        ("plain.ece>ece", True),
        ("auroc<0.95", True),
        ("fpr95>0.05", True),
        ("far-auroc<0.95", False),
        ("far-fpr95>0", False),
        ("far-confidence>0.2", True),
        ("temperature.nll<1", True),
        ("paper.brier>1", False),
        ("confidence>0.5", True),
        ("nll>2.5", False),
        ("augrc>1.5%", True),
        ("smooth-ece>0.5%", False),
        ("debiased-rmsce>=0.0025", True),
        ("classwise-ece<0.0013", True),
        ("ece>floor", True),
        ("temperature.brier-calibration<plain.brier-refinement", True),
    ],
)
def test_a_condition_holds_or_not(audit: Audit, text: str, holds: bool) -> None:
    found = failures(audit, text)
    assert bool(found) == holds
    assert not holds or found[0].startswith(f"{text}: ")


def test_the_worst_set_counts(audit: Audit) -> None:
    cars = audit.outliers[0]
    poor = replace(cars.scores["bitbayes"], auroc=0.6, fpr95=0.8)
    worse = replace(cars, scores=cars.scores | {"bitbayes": poor})
    found = replace(audit, outliers=[worse, *audit.outliers[1:]])
    assert failures(found, "auroc<0.7", "fpr95>0.7", "far-auroc<0.7") == [
        "auroc<0.7: bitbayes.auroc is 0.6",
        "fpr95>0.7: bitbayes.fpr95 is 0.8",
    ]


ODD = ["a.b", "two words", "x>0.5", "ece", "<ships>", "日本 = 1", "50%"]


@pytest.mark.parametrize("name", ODD)
def test_any_column_can_be_named(audit: Audit, name: str) -> None:
    found = replace(audit, test=audit.test | {name: audit.test["temperature"]})
    conditions = [parse_condition(f"{name}.ece > 1%"), parse_condition(f"ece < {name}.ece")]
    check_columns(conditions, found.methods)
    assert check_conditions(found, conditions) == [
        f"{name}.ece > 1%: {name}.ece is 0.02",
        f"ece < {name}.ece: bitbayes.ece is 0.01, {name}.ece is 0.02",
    ]


def test_a_name_that_has_no_column_is_an_error_before_the_audit() -> None:
    columns = ["net", "my forest"]
    message = r"'my forrest' in 'my forrest.ece>1%' is no column: did you mean 'my forest'\? The columns are"
    with pytest.raises(ArgumentError, match=message):
        check_columns([parse_condition("my forrest.ece>1%")], columns)
    with pytest.raises(ArgumentError, match=r"'plane' in 'ece>plane.ece' is no column"):
        check_columns([parse_condition("ece>plane.ece")], columns)


def test_without_bitbayes_a_bare_measure_is_of_the_first_column(audit: Audit) -> None:
    found = replace(audit, ours=None)
    assert failures(found, "ece>0.05") == ["ece>0.05: plain.ece is 0.09"]


def test_both_sides_are_shown(audit: Audit) -> None:
    assert failures(audit, "ece<plain.ece") == ["ece<plain.ece: bitbayes.ece is 0.01, plain.ece is 0.09"]


def test_what_cannot_be_checked_does_not_pass(bare: Audit, without_paper: Audit) -> None:
    assert failures(bare, "auroc<0.1", "far-auroc<0.1") == [
        "auroc<0.1: cannot be checked, since there are no unfamiliar inputs",
        "far-auroc<0.1: cannot be checked, since there are no far-away inputs",
    ]
    assert failures(without_paper, "paper.ece>1") == [
        "paper.ece>1: cannot be checked, since 'paper' was left out"
    ]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("method", [*AUDITED_METHODS, "paper"])
def test_every_name_has_a_value(audit: Audit, method: str, measure: str) -> None:
    assert len(failures(audit, f"{method}.{measure}>=-1")) == 1
    assert failures(audit, f"{method}.{measure}<-1") == []


@pytest.mark.parametrize(
    "text, message",
    [
        ("ecee>0.05", r"'ecee' in 'ecee>0.05' is no measure: did you mean 'ece'\?"),
        ("loss>0.05", r"'loss' in .* is no measure: The measures are accuracy, confidence, nll"),
        ("ece=0.05", r"'ece=0.05' is no condition: write a measure, >, >=, < or <=, and a number"),
        ("ece", r"'ece' is no condition"),
        ("ece>0.05 and nll>1", r"is no condition"),
        ("ece>", r"is no condition"),
        ("ece>much", r"'much' in 'ece>much' is no measure"),
        ("", r"'' is no condition"),
        # These would never hold, or always, whatever is measured.
        ("fpr95>20", r"'20' in 'fpr95>20' would decide nothing: a rate is between 0 and 1, or a percentage"),
        ("plain.ece>nan", r"'nan' in 'plain.ece>nan' would decide nothing"),
        ("nll>nan", r"'nan' in 'nll>nan' would decide nothing: give a number"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_condition(text)
