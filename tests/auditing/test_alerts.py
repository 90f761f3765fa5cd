"""Alerts: each one where it must be, and none where all is well."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import bitbayes as bb
from auditing.columns import audit_of
from auditing.round_numbers import make_audit
from bitbayes.auditing.alerts import find_alerts
from bitbayes.auditing.findings import Audit, DataChecks, LabelShift
from bitbayes.errors import EdgeWarning

Points = tuple[Tensor, Tensor]
COLUMNS = {"plain": (0.4, 0.08, 0.9), "bitbayes": (0.3, 0.01, 0.9)}
NEAR = {"plain": (0.8, 0.4), "bitbayes": (0.9, 0.2)}


def healthy(**checks: object) -> Audit:
    return audit_of(COLUMNS, unfamiliar=NEAR, checks=DataChecks(**checks))  # type: ignore[arg-type]


def only_alert(audit: Audit) -> tuple[str, str, str]:
    (alert,) = find_alerts(audit)
    return alert.kind, alert.text, alert.remedy


def test_where_all_is_well_there_is_none() -> None:
    assert find_alerts(healthy(copies={"validation in train": 0}, missing={"validation": []})) == []


@pytest.mark.parametrize(
    "validation, text, remedy",
    [
        (
            (40, 3),
            "Only 40 validation points, 3 of them wrong: what is tuned on them is uncertain.",
            "Give some hundred.",
        ),
        (
            (20, 0),
            "All 20 validation points are right: they cannot choose a temperature.",
            "Give some hundred.",
        ),
        (
            (2000, 0),
            "All 2,000 validation points are right: they cannot choose a temperature.",
            "Are they training data? Give others, or more.",
        ),
    ],
)
def test_validation_points_that_cannot_decide(validation: tuple[int, int], text: str, remedy: str) -> None:
    assert only_alert(audit_of(COLUMNS, unfamiliar=NEAR, validation=validation)) == (
        "validation",
        text,
        remedy,
    )


def test_an_audit_without_validation_data_has_nothing_to_say_of_them() -> None:
    audit = healthy()
    assert find_alerts(replace(audit, sizes={"test": 400}, errors={})) == []


def test_a_search_that_ended_at_its_edge() -> None:
    edges = ["Temperature: the best temperature lies beyond 20"]
    kind, text, _ = only_alert(healthy(edges=edges))
    assert (kind, text) == ("edge", "Temperature: the best temperature lies beyond 20.")
    without_errors = audit_of(COLUMNS, unfamiliar=NEAR, validation=(20, 0), checks=DataChecks(edges=edges))
    assert [each.kind for each in find_alerts(without_errors)] == ["validation"]  # which says why


def test_calibration_within_noise() -> None:
    audit = audit_of(COLUMNS | {"plain": (0.4, 0.012, 0.9)}, unfamiliar=NEAR)
    assert only_alert(audit) == (
        "noise",
        "Calibration within noise: with 400 test inputs, a calibrated model would show an ECE of up to 1.2%, "
        "and no column shows more than chance.",
        "Compare log losses, or give more test inputs.",
    )


def test_outliers_that_were_not_given() -> None:
    assert only_alert(audit_of(COLUMNS, unfamiliar=NEAR, given=False))[1] == (
        "No outliers were given: noise takes their place."
    )
    assert only_alert(audit_of(COLUMNS))[1] == "No outliers were given: refusing was not tested."


def test_missing_classes() -> None:
    assert only_alert(healthy(missing={"validation": [3], "test": []}))[1] == (
        "No validation input of class 3: nothing is tuned for it."
    )
    assert only_alert(healthy(missing={"test": [0, 2, 3]}))[1] == (
        "No test input of class 0, class 2 and class 3: nothing is known about them."
    )
    names = [f"<{label}>" for label in range(1500)]
    many = only_alert(replace(healthy(missing={"test": list(range(1500))}), class_names=names))[1]
    assert "No test input of <0>, <1>, <2>, <3>, <4> and 1,495 more:" in many


def test_copies_are_told_from_one_in_a_hundred_on() -> None:
    assert only_alert(healthy(copies={"validation in train": 10}))[1] == (
        "10 of 1,000 validation inputs are copies of training inputs. What is tuned on them is too sure."
    )
    assert find_alerts(healthy(copies={"validation in train": 9})) == []
    found = find_alerts(healthy(copies={"test in train": 4, "test in validation": 400}))
    assert [each.text for each in found] == [
        "4 of 400 test inputs are copies of training inputs. The scores are too good.",
        "400 of 400 test inputs are copies of validation inputs. The scores of what is tuned there are too "
        "good.",
    ]


def test_right_answers_that_are_refused_because_inputs_are_larger() -> None:
    audit = make_audit()
    first = replace(audit.scaled[0], refused_right=audit.scaled[0].refused_right | {"bitbayes": 0.854})
    (alert,) = find_alerts(replace(audit, scaled=[first, *audit.scaled[1:]]))
    assert (alert.kind, alert.text) == (
        "scaled",
        "Refusing by the score costs right answers where inputs vary in scale: of 100 test inputs × 1.5, 85 "
        "are refused although the answer is right.",
    )
    assert find_alerts(replace(audit, scaled=[first], ours=None)) == []


def test_shifted_labels_come_first() -> None:
    def said(by: int | None, moved: list[list[int]]) -> str:
        audit = healthy(shift=LabelShift(0.01, 0.97, by, moved), missing={"test": [0]})
        assert [each.kind for each in find_alerts(audit)] == ["labels", "classes"]
        return find_alerts(audit)[0].text

    assert said(1, []) == (
        "Labels look shifted: accuracy is 1.0%, and would be 97.0% if each label were 1 more (modulo the "
        "number of classes)."
    )
    assert "if each label were 1 less (modulo" in said(3, [])
    assert said(None, [[0, 1], [1, 0]]).endswith("if class 0 were class 1, class 1 were class 0.")
    assert said(None, [[i % 4, 1] for i in range(8)]).endswith("class 0 were class 1 and 3 more moved.")


def kinds_of(train: Points, validation: Points, test: Points) -> dict[str, str]:
    """The texts of the alerts of a real audit, by kind."""
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    with torch.no_grad():  # the three corners, a little apart
        model.weight.copy_(3 * torch.eye(3))
        model.bias.zero_()
    return {each.kind: each.text for each in bb.audit(model, train, validation, test).alerts}


def points(n: int, seed: int) -> Points:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return torch.eye(3)[y] + 0.5 * torch.randn(n, 3, generator=generator), y


def test_an_audit_finds_what_is_wrong_with_its_data() -> None:
    train, validation, test = points(300, 1), points(240, 2), points(240, 3)
    assert {"copies", "classes", "labels"}.isdisjoint(kinds_of(train, validation, test))
    found = kinds_of(train, (torch.cat([validation[0][:200], train[0][:40]]), validation[1]), validation)
    assert found["copies"].startswith("200 of 240 test inputs are copies of validation inputs.")
    found = kinds_of(train, train, test)
    assert found["copies"].startswith("300 of 300 validation inputs are copies of training inputs.")
    two = validation[1] < 2
    found = kinds_of(train, (validation[0][two], validation[1][two]), test)
    assert found["classes"] == "No validation input of class 2: nothing is tuned for it."
    found = kinds_of(train, validation, (test[0], (test[1] + 1) % 3))
    assert "if each label were 1 less (modulo" in found["labels"]


def test_a_search_at_its_edge_becomes_an_alert_and_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: object, **__: object) -> None:
        warnings.warn("the edge", EdgeWarning, stacklevel=2)

    monkeypatch.setattr("bitbayes.laplace.warn_at_the_edge", warn)
    torch.manual_seed(0)
    report = bb.audit(nn.Linear(3, 3), points(60, 1), points(300, 2), points(60, 3))
    assert [each.text for each in report.alerts if each.kind == "edge"] == ["bitbayes: the edge."]
    assert [note for note in report.notes if "edge" in note] == ["Paper’s objective: the edge"]  # no column
    assert report.to_dict()["alerts"][-1]["kind"] == "outliers"
