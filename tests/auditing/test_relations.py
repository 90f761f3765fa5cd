"""How two columns compare: the noticeable difference, the bootstrap, the noise floor, and chance."""

from dataclasses import replace

import pytest
import torch

from auditing.columns import audit_of
from bitbayes import metrics
from bitbayes.auditing.relations import (
    against_all,
    at_chance,
    best,
    best_first,
    changes,
    kinds,
    others,
    relation,
    within_noise,
)

PLAIN = (0.30, 0.05, 0.90)  # log loss, ECE, accuracy


@pytest.mark.parametrize(
    "ours, expected",
    [
        ((0.30, 0.05, 0.90), "same"),
        ((0.28, 0.03, 0.90), "better"),  # by both
        ((0.30, 0.03, 0.90), "better"),  # by the ECE
        ((0.28, 0.05, 0.90), "better"),  # by the log loss
        ((0.30, 0.05, 0.93), "better"),  # by the accuracy
        ((0.32, 0.05, 0.90), "worse"),
        ((0.28, 0.08, 0.90), "mixed"),  # log loss and ECE disagree
        ((0.28, 0.05, 0.87), "mixed"),
        ((0.295, 0.045, 0.905), "same"),  # not noticeable, by any measure
    ],
)
def test_one_better_measure_is_enough_if_none_is_worse(ours: tuple[float, ...], expected: str) -> None:
    audit = audit_of({"plain": PLAIN, "bitbayes": ours})  # type: ignore[dict-item]
    assert relation(audit, "normal", "bitbayes", "plain") == expected
    turned = {"better": "worse", "worse": "better"}.get(expected, expected)
    assert relation(audit, "normal", "plain", "bitbayes") == turned


def test_a_difference_within_the_bootstrap_counts_as_none() -> None:
    audit = audit_of({"plain": PLAIN, "bitbayes": (0.1, 0.02, 0.99)}, clear=lambda *_: False)
    assert relation(audit, "normal", "bitbayes", "plain") == "same"


def test_two_eces_within_noise_are_level() -> None:
    columns = {"plain": (0.3, 0.012, 0.9), "bitbayes": (0.3, 0.0, 0.9), "other": (0.3, 0.0125, 0.9)}
    audit = audit_of(columns)  # type: ignore[arg-type]
    assert audit.test["plain"].floor_interval == [0.004, 0.012]
    assert [within_noise(audit.test[name]) for name in columns] == [True, True, False]
    assert changes(audit, "normal", "bitbayes", "plain")["ece"] == "same"
    assert changes(audit, "normal", "bitbayes", "other")["ece"] == "better"  # one is beyond noise


def test_most_calibrated_models_are_within_noise_and_few_others() -> None:
    generator = torch.Generator().manual_seed(0)
    found = {1.0: 0, 0.5: 0}
    trials = 60
    for temperature in found:
        for _ in range(trials):
            logits = 2 * torch.randn(400, 5, generator=generator, dtype=torch.float64)
            labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
            probs = (logits / temperature).softmax(1)
            floor = metrics.calibration_floor(probs)
            scores = audit_of({"plain": PLAIN, "bitbayes": PLAIN}).test["plain"]
            scores = replace(scores, ece=metrics.ece(probs, labels), floor_interval=[floor.low, floor.high])
            found[temperature] += within_noise(scores)
    # 97.5% of calibrated models are; below 0.88 of 60 is less likely than one in a thousand.
    assert found[1.0] >= 0.88 * trials
    assert found[0.5] == 0


def test_outliers_are_compared_by_auroc_and_by_what_is_stopped() -> None:
    def related(plain: tuple[float, float], ours: tuple[float, float]) -> str:
        audit = audit_of({"plain": PLAIN, "bitbayes": PLAIN}, unfamiliar={"plain": plain, "bitbayes": ours})
        return relation(audit, "unfamiliar", "bitbayes", "plain")

    assert related((0.8, 0.4), (0.9, 0.2)) == "better"
    assert related((0.8, 0.4), (0.9, 0.4)) == "better"
    assert related((0.8, 0.4), (0.9, 0.5)) == "mixed"
    assert related((0.8, 0.4), (0.7, 0.5)) == "worse"
    assert related((0.45, 0.9), (0.55, 0.8)) == "same"  # both at chance
    assert related((0.45, 0.9), (0.65, 0.8)) == "better"


def test_the_kinds_and_chance() -> None:
    columns = {"plain": (0.4, 0.9), "bitbayes": (0.61, 0.9)}
    audit = audit_of({"plain": PLAIN, "bitbayes": PLAIN}, far=columns)
    assert kinds(audit) == ["normal", "far"]
    assert [at_chance(audit, "far", name) for name in columns] == [True, False]


def test_better_means_better_than_each_of_the_others() -> None:
    columns = {"plain": (0.30, 0.05, 0.9), "temperature": (0.25, 0.05, 0.9), "bitbayes": (0.25, 0.05, 0.9)}
    audit = audit_of(columns)  # type: ignore[arg-type]
    assert relation(audit, "normal", "bitbayes", "plain") == "better"
    assert against_all(audit, "normal", "bitbayes") == ("same", "temperature")
    audit = audit_of(columns | {"bitbayes": (0.27, 0.05, 0.9)})  # type: ignore[arg-type]
    assert against_all(audit, "normal", "bitbayes") == ("worse", "temperature")
    audit = audit_of(columns | {"bitbayes": (0.2, 0.05, 0.9)})  # type: ignore[arg-type]
    assert against_all(audit, "normal", "bitbayes") == ("better", "temperature")  # the best of the others


def test_energy_has_no_probabilities_of_its_own() -> None:
    columns = {"plain": PLAIN, "temperature": (0.2, 0.01, 0.9), "energy": PLAIN, "bitbayes": PLAIN}
    audit = audit_of(columns, far=dict.fromkeys(columns, (0.9, 0.1)))  # type: ignore[arg-type]
    assert others(audit, "normal", "bitbayes") == ["plain", "temperature"]
    assert others(audit, "far", "bitbayes") == ["plain", "temperature", "energy"]
    assert others(audit_of({"plain": PLAIN, "energy": PLAIN}), "normal", "plain") == ["energy"]  # type: ignore[dict-item]
    assert best_first(audit, "normal", list(columns)) == ["temperature", "plain", "energy", "bitbayes"]
    assert best(audit, "normal") == ("temperature", [])


def test_the_best_and_those_that_are_not_clearly_worse() -> None:
    columns = {"a": (0.20, 0.05, 0.9), "b": (0.205, 0.05, 0.9), "c": (0.3, 0.05, 0.9), "d": (0.3, 0.01, 0.9)}
    assert best(audit_of(columns), "normal") == ("a", ["b", "d"])  # type: ignore[arg-type]
