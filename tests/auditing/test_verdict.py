"""The verdict, for each way in which an audit can come out."""

from dataclasses import replace

import pytest

from auditing.round_numbers import group, outlier_scores, scores_on_test
from bitbayes.auditing.findings import Audit, TestScores
from bitbayes.auditing.verdict import advise, calibration_gap, change_of, compare, write_verdict


def outcome(
    audit: Audit,
    *,
    familiar: str = "same",
    unfamiliar: tuple[str, float, float] | None = None,
    far: tuple[str, float, float] | None = None,
) -> Audit:
    """The audit with other results: for outliers the change, and AUROC of plain and of bitbayes."""
    ece = {"same": 0.011, "better": 0.005, "worse": 0.3}[familiar]
    test = {
        **audit.test,
        "plain": scores_on_test(0.9, 0.9, 0.03 if familiar == "better" else 0.01),
        "temperature": scores_on_test(0.9, 0.9, 0.01),
        "bitbayes": scores_on_test(0.9, 0.9, ece, familiar),
    }
    groups = {}
    for name, result in (("unfamiliar", unfamiliar), ("far", far)):
        if result:
            change, plain, ours = result
            pair = (outlier_scores(0.8, auroc, 1 - auroc) for auroc in (plain, ours))
            groups[name] = group(change, *pair, name)
    return replace(audit, test=test, groups=groups)


def test_what_leads_is_how_many_get_through(audit: Audit) -> None:
    assert write_verdict(audit) == (
        "bitbayes helps: of 100 unfamiliar inputs, 10 get through instead of 40; of 100 far-away inputs, "
        "none instead of all; familiar inputs are better calibrated (calibration error 9.0 → 1.0 %)."
    )


def test_the_three_comparisons(audit: Audit) -> None:
    familiar, unfamiliar, far = compare(audit)
    assert (familiar.plain, familiar.bitbayes, familiar.change) == ("9.0", "1.0", "better")
    assert familiar.detail == (
        "Claims 99.0 → 90.0 %, and is right 90.0 → 89.5 % of the time: plain is overconfident by 9.0 "
        "points, bitbayes calibrated on average."
    )
    assert (unfamiliar.plain, unfamiliar.bitbayes, unfamiliar.change) == ("40", "10", "better")
    assert unfamiliar.detail == (
        "AUROC 80.0 → 90.0 %; mean confidence 80.0 → 40.0 % (a blind guess: 25.0 %)."
    )
    assert (far.plain, far.bitbayes, far.change) == ("100", "0", "better")


# What the verdict says, and how the advice begins.
CASES = {
    "no worse, and better on outliers": (
        {"unfamiliar": ("better", 0.8, 0.9), "far": ("better", 0.1, 1.0)},
        "bitbayes helps: of 100 unfamiliar inputs, 10 get through instead of 20; of 100 far-away inputs, "
        "none instead of 90; familiar inputs are as well calibrated as before.",
        "Use bitbayes instead of the plain probabilities:",
    ),
    "better calibrated alone": (
        {"familiar": "better", "unfamiliar": ("same", 0.8, 0.8)},
        "bitbayes helps in part: familiar inputs are better calibrated (calibration error 3.0 → 0.5 %); of "
        "100 unfamiliar inputs about as many get through (20 → 20).",
        "Use bitbayes instead of the plain probabilities:",
    ),
    "nothing changes": (
        {"unfamiliar": ("same", 0.8, 0.81), "far": ("same", 0.9, 0.9)},
        "bitbayes makes no clear difference here: of 100 unfamiliar inputs about as many get through "
        "(20 → 19); of 100 far-away inputs about as many get through (10 → 10); familiar inputs are "
        "as well calibrated as before.",
        "Keep the plain network: bitbayes brings no clear gain on these data.",
    ),
    "the network is blind": (
        {"unfamiliar": ("same", 0.5, 0.5)},
        "bitbayes makes no clear difference here: AUROC on unfamiliar inputs stays at chance (50.0 → "
        "50.0 %), so this network cannot tell them from its own data; familiar inputs are as well "
        "calibrated as before.",
        "Keep the plain network: bitbayes brings no clear gain on these data.",
    ),
    "worse calibrated, but better on outliers": (
        {"familiar": "worse", "unfamiliar": ("better", 0.8, 0.9)},
        "bitbayes helps in part: of 100 unfamiliar inputs, 10 get through instead of 20; but familiar inputs "
        "are less well calibrated (calibration error 1.0 → 30.0 %).",
        "Keep the plain network’s probabilities. Use bitbayes only to refuse inputs that are "
        "unlike the data:",
    ),
    "the network is blind, but better calibrated": (
        {"familiar": "better", "unfamiliar": ("worse", 0.48, 0.45), "far": ("better", 0.1, 1.0)},
        "bitbayes helps in part: of 100 far-away inputs, none get through instead of 90; familiar inputs are "
        "better calibrated (calibration error 3.0 → 0.5 %); AUROC on unfamiliar inputs stays at chance (48.0 "
        "→ 45.0 %), so this network cannot tell them from its own data.",
        "Use bitbayes instead of the plain probabilities:",
    ),
    "worse on unfamiliar inputs, better far away": (
        {"unfamiliar": ("worse", 0.8, 0.6), "far": ("better", 0.1, 1.0)},
        "bitbayes helps in part: of 100 far-away inputs, none get through instead of 90; familiar inputs are "
        "as well calibrated as before; but of 100 unfamiliar inputs, 40 get through instead of 20.",
        "Decide by the inputs that you expect. If the gain matters more to you than the loss:",
    ),
    "worse everywhere": (
        {"familiar": "worse", "unfamiliar": ("worse", 0.8, 0.6)},
        "bitbayes makes this classifier worse: of 100 unfamiliar inputs, 40 get through instead of 20; "
        "familiar inputs are less well calibrated (calibration error 1.0 → 30.0 %).",
        "Keep the plain network. Before you try again, check that the validation data are like "
        "the test data, "
        "and that there are enough of them (300 here).",
    ),
    "worse on outliers alone": (
        {"unfamiliar": ("worse", 0.8, 0.6)},
        "bitbayes makes this classifier worse: of 100 unfamiliar inputs, 40 get through instead of 20; "
        "familiar inputs are as well calibrated as before.",
        "Keep the plain network. Before you try again, check that the validation data are like "
        "the test data, "
        "and that there are enough of them (300 here).",
    ),
    "without outliers": (
        {"familiar": "better"},
        "bitbayes helps: familiar inputs are better calibrated (calibration error 3.0 → 0.5 %).",
        "Use bitbayes instead of the plain probabilities:",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_outcome_is_said_as_it_is(audit: Audit, case: str) -> None:
    changes, verdict, advice = CASES[case]
    found = outcome(audit, **changes)  # type: ignore[arg-type]
    assert write_verdict(found) == verdict
    assert advise(found)[0].text == advice


def test_a_network_that_cannot_tell_gets_other_advice(audit: Audit) -> None:
    texts = [each.text for each in advise(outcome(audit, unfamiliar=("same", 0.5, 0.5)))]
    assert any("look like its own data" in text for text in texts)
    texts = [each.text for each in advise(outcome(audit, unfamiliar=("better", 0.5, 0.8)))]
    assert not any("look like its own data" in text for text in texts)


def test_advice_has_lines_that_run_and_refuse(audit: Audit) -> None:
    use, refuse = advise(audit)
    assert use.code.splitlines()[-1] == "probs = bayes.predict_proba(x)"
    assert "accept=0.95" in refuse.code
    for each in (use, refuse):
        compile(each.code, "advice", "exec")


def test_where_temperature_is_enough_it_is_recommended(audit: Audit) -> None:
    found = outcome(audit, unfamiliar=("same", 0.8, 0.8))
    test = {**found.test, "plain": scores_on_test(0.9, 0.95, 0.05)}
    test["temperature"] = scores_on_test(0.9, 0.9, 0.01, "better")
    test["bitbayes"] = scores_on_test(0.9, 0.95, 0.05)
    advice = advise(replace(found, test=test))[0]
    assert advice.text == "Temperature scaling is enough here:"
    assert advice.code.startswith("import bitbayes as bb\n")


def test_without_outliers_of_the_user_they_are_asked_for(audit: Audit) -> None:
    assert not any("Audit again" in each.text for each in advise(audit))
    noise = replace(audit, outliers=[each for each in audit.outliers if each.kind != "given"])
    assert advise(noise)[-1].text.startswith("Audit again with inputs of your own")
    assert advise(outcome(audit))[-1].text.startswith("Audit again")


def with_another_accuracy(audit: Audit, ours: TestScores, change: str) -> Audit:
    """bitbayes has these scores, and its accuracy is better or worse than that of the plain network."""
    found = outcome(audit)
    ours = replace(ours, against={"plain": ours.against["plain"] | {"accuracy": change}})
    return replace(found, test=found.test | {"bitbayes": ours})


def test_a_lower_accuracy_is_said_too(audit: Audit) -> None:
    found = with_another_accuracy(audit, scores_on_test(0.8, 0.8, 0.01), "worse")
    assert write_verdict(found) == "bitbayes makes this classifier worse: accuracy falls from 90.0 to 80.0 %."
    (shown,) = compare(found)
    assert (shown.measure, shown.plain, shown.bitbayes) == ("accuracy, %", "90.0", "80.0")


def test_a_higher_accuracy_is_no_better_calibration(audit: Audit) -> None:
    found = with_another_accuracy(audit, scores_on_test(0.95, 0.95, 0.011), "better")
    assert write_verdict(found) == "bitbayes helps: accuracy rises from 90.0 to 95.0 %."


def test_the_lines_to_copy_are_those_of_the_gain(audit: Audit) -> None:
    found = advise(outcome(audit, familiar="better", unfamiliar=("worse", 0.8, 0.6)))[0]
    assert found.text.startswith("Decide by the inputs")
    assert "predict_proba" in found.code and "threshold" not in found.code
    found = advise(outcome(audit, unfamiliar=("worse", 0.8, 0.6), far=("better", 0.1, 1.0)))[0]
    assert "threshold" in found.code and "predict_proba" not in found.code


def test_a_change_must_be_noticeable_and_beyond_chance(audit: Audit) -> None:
    plain = outlier_scores(0.8, 0.8, 0.4)
    assert change_of(outlier_scores(0.8, 0.9, 0.4, "better"), plain, "auroc") == "better"
    assert change_of(outlier_scores(0.8, 0.809, 0.4, "better"), plain, "auroc") == "same"  # too small
    assert change_of(outlier_scores(0.8, 0.9, 0.4, "same"), plain, "auroc") == "same"  # may be chance
    # A better ranking, but more that get through: nothing is clear.
    ours = replace(outlier_scores(0.8, 0.9, 0.6), against={"plain": {"auroc": "better", "fpr95": "worse"}})
    found = outcome(audit, unfamiliar=("same", 0.8, 0.8))
    scores = {**found.groups["unfamiliar"].scores, "plain": plain, "bitbayes": ours}
    found.groups["unfamiliar"] = replace(found.groups["unfamiliar"], scores=scores)
    assert compare(found)[1].change == "same"
    disagree = "on unfamiliar inputs the scores disagree (AUROC 80.0 → 90.0 %; 40 → 60 of 100 get through)"
    assert disagree in write_verdict(found)


def test_with_few_inputs_nothing_is_said_to_be_the_same(audit: Audit) -> None:
    found = outcome(audit, unfamiliar=("same", 0.8, 0.7))
    found = replace(found, test=found.test | {"bitbayes": scores_on_test(0.9, 0.9, 0.05)})
    assert write_verdict(found) == (
        "bitbayes makes no clear difference here: it is not clear whether fewer unfamiliar inputs get"
        " through (20 → 30 of 100); it is not clear whether familiar inputs are better calibrated "
        "(calibration error 1.0 → 5.0 %)."
    )


def test_a_better_ranking_at_the_same_threshold_is_told_by_auroc(audit: Audit) -> None:
    found = outcome(audit, unfamiliar=("same", 0.8, 0.8))
    pair = outlier_scores(0.8, 0.8, 0.0), outlier_scores(0.8, 0.9, 0.0)
    found.groups["unfamiliar"] = group("better", *pair, "cars")
    assert "it ranks unfamiliar inputs better (AUROC 80.0 → 90.0 %)" in write_verdict(found)
    shown = compare(found)[1]
    assert (shown.measure, shown.plain, shown.bitbayes, shown.change) == (
        "AUROC, %",
        "80.0",
        "90.0",
        "better",
    )
    assert shown.detail.startswith("0 → 0 of 100 get through; mean confidence")


@pytest.mark.parametrize(
    "accuracy, confidence, n, expected",
    [
        (0.90, 0.95, 10_000, 0.05),  # two standard errors are 0.006
        (0.90, 0.85, 10_000, -0.05),
        (0.90, 0.95, 100, 0.0),  # and here 0.06
        (1.00, 0.996, 1_000, 0.0),  # no error at all, but half a point is nothing to speak of
        (1.00, 0.99, 1_000, -0.01),
    ],
)
def test_a_gap_counts_only_where_the_data_show_it(
    audit: Audit, accuracy: float, confidence: float, n: int, expected: float
) -> None:
    scores: TestScores = replace(audit.test["plain"], accuracy=accuracy, confidence=confidence)
    assert calibration_gap(scores, n) == pytest.approx(expected)
