"""The verdict, for each way in which an audit can come out."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditing.columns import LARGER_IS_BETTER, always, audit_of, on_outliers
from auditing.round_numbers import make_audit
from bitbayes.auditing.advice import advise
from bitbayes.auditing.alerts import find_alerts
from bitbayes.auditing.findings import Audit, TestScores
from bitbayes.auditing.verdict import (
    calibration_gap,
    compare,
    find_reasons,
    gains,
    word_of,
    write_verdict,
)

# Log loss, ECE and accuracy; AUROC, and the share that gets through.
FAMILIAR = {
    "plain": (0.40, 0.08, 0.9),
    "temperature": (0.30, 0.03, 0.9),
    "energy": (0.40, 0.08, 0.9),
    "bitbayes": (0.30, 0.03, 0.9),
}
UNFAMILIAR = {
    "plain": (0.8, 0.4),
    "temperature": (0.8, 0.4),
    "energy": (0.85, 0.34),
    "bitbayes": (0.85, 0.34),
}


def outcome(
    ours: tuple[float, float, float] = FAMILIAR["bitbayes"],
    unfamiliar: tuple[float, float] | None = UNFAMILIAR["bitbayes"],
    far: tuple[float, float] | None = None,
    **changes: Any,
) -> Audit:
    """An audit in which bitbayes has these numbers, far away against an AUROC of 0.1 with none stopped."""
    near = UNFAMILIAR | {"bitbayes": unfamiliar} if unfamiliar else None
    away = dict.fromkeys(UNFAMILIAR, (0.1, 1.0)) | {"bitbayes": far} if far else None
    return audit_of(FAMILIAR | {"bitbayes": ours}, unfamiliar=near, far=away, **changes)


CASES = {
    "better on all": (
        outcome((0.2, 0.02, 0.9), (0.9, 0.2), (1.0, 0.0)),
        "bitbayes helps: if you accept 95% of normal inputs, it stops 80 of 100 unfamiliar ones (before: "
        "60, energy: 66); log loss is better than with temperature scaling (0.200 against 0.300).",
        ["better", "better", "better"],
    ),
    "better on outliers of the user": (
        outcome(unfamiliar=(0.9, 0.2)),
        "bitbayes helps: if you accept 95% of normal inputs, it stops 80 of 100 unfamiliar ones (before: "
        "60, energy: 66); log loss and ECE are better than before (0.300 against 0.400, 3.0% against "
        "8.0%), as with temperature scaling.",
        ["same", "better"],
    ),
    "better calibrated alone": (
        outcome((0.3, 0.01, 0.9)),
        "bitbayes helps in part: ECE is better than with temperature scaling (1.0% against 3.0%); if you "
        "accept 95% of normal inputs, it stops 66 of 100 unfamiliar ones (before: 60, energy: 66), not "
        "clearly more or fewer than energy.",
        ["better", "same"],
    ),
    "better calibrated, and no outliers": (
        outcome((0.3, 0.01, 0.9), None),
        "bitbayes helps: ECE is better than with temperature scaling (1.0% against 3.0%).",
        ["better"],
    ),
    "better than plain, but not than temperature scaling and energy": (
        outcome(),
        "bitbayes does not help here: if you accept 95% of normal inputs, it stops 66 of 100 unfamiliar "
        "ones (before: 60, energy: 66), not clearly more or fewer than energy; log loss and ECE are "
        "better than before (0.300 against 0.400, 3.0% against 8.0%), as with temperature scaling. Likely"
        " reasons: temperature scaling does as well; energy stops unfamiliar inputs as well.",
        ["same", "same"],
    ),
    "better on made-up inputs alone": (
        outcome(unfamiliar=(1.0, 0.0), far=(1.0, 0.0), given=False),
        "bitbayes does not help here, except on inputs that the audit made up (noise and far-away): log "
        "loss and ECE are better than before (0.300 against 0.400, 3.0% against 8.0%), as with "
        "temperature scaling. Likely reason: temperature scaling does as well.",
        ["same", "better", "better"],
    ),
    "the network is calibrated already": (
        audit_of({"plain": (0.2, 0.01, 0.9), "bitbayes": (0.2, 0.011, 0.9)}),
        "bitbayes does not help here: accuracy and calibration stay. Likely reason: the network is "
        "calibrated already (ECE 1.0%, within noise).",
        ["same"],
    ),
    "few validation points": (
        outcome(validation=(40, 1), unfamiliar=None),
        "bitbayes does not help here: log loss and ECE are better than before (0.300 against 0.400, 3.0% "
        "against 8.0%), as with temperature scaling. Likely reasons: only 40 validation points, 1 of them"
        " wrong; temperature scaling does as well.",
        ["same"],
    ),
    "many validation points without an error": (
        outcome(validation=(5000, 0), unfamiliar=None),
        "bitbayes does not help here: log loss and ECE are better than before (0.300 against 0.400, 3.0% "
        "against 8.0%), as with temperature scaling. Likely reasons: none of the 5,000 validation points "
        "is wrong; temperature scaling does as well.",
        ["same"],
    ),
    "strangers still get through": (
        outcome(unfamiliar=(0.8, 0.6)),
        "bitbayes does not help here: if you accept 95% of normal inputs, it stops only 40 of 100 "
        "unfamiliar ones (before: 60, energy: 66); log loss and ECE are better than before (0.300 against"
        " 0.400, 3.0% against 8.0%), as with temperature scaling. Likely reasons: temperature scaling "
        "does as well; 60 of 100 unfamiliar inputs still get through.",
        ["same", "worse"],
    ),
    "temperature scaling got worse, too": (
        audit_of({"plain": (0.3, 0.03, 0.9), "temperature": (0.4, 0.03, 0.9), "bitbayes": (0.4, 0.09, 0.9)}),
        "bitbayes makes this classifier worse: log loss and ECE are worse than before (0.400 against "
        "0.300, 9.0% against 3.0%). Likely reason: temperature scaling got worse, too.",
        ["worse"],
    ),
    "worse everywhere": (
        outcome((0.5, 0.2, 0.8), (0.7, 0.6), (0.05, 1.0)),
        "bitbayes makes this classifier worse: if you accept 95% of normal inputs, it stops only 40 of "
        "100 unfamiliar ones (before: 60, energy: 66); it ranks far-away inputs worse than before (AUROC "
        "5.0% and 10.0%); log loss, ECE and accuracy are worse than with temperature scaling (0.500 "
        "against 0.300, 20.0% against 3.0%, 80.0% against 90.0%). Likely reason: 60 of 100 unfamiliar "
        "inputs still get through.",
        ["worse", "worse", "worse"],
    ),
    "log loss and ECE disagree": (
        outcome((0.25, 0.09, 0.9), (0.9, 0.2)),
        "bitbayes helps in part: if you accept 95% of normal inputs, it stops 80 of 100 unfamiliar ones "
        "(before: 60, energy: 66); but on normal inputs the measures disagree: log loss is better than "
        "with temperature scaling (0.250 against 0.300), and ECE is worse than with temperature scaling "
        "(9.0% against 3.0%).",
        ["mixed", "better"],
    ),
    "the measures of refusing disagree": (
        outcome((0.2, 0.02, 0.9), (0.9, 0.5)),
        "bitbayes helps in part: log loss is better than with temperature scaling (0.200 against 0.300); "
        "but on unfamiliar inputs the measures disagree (AUROC 90.0%, energy: 85.0%; 50 of 100 stopped, "
        "energy: 66).",
        ["better", "mixed"],
    ),
    "blind": (
        audit_of(
            {"plain": (0.4, 0.08, 0.9), "bitbayes": (0.3, 0.03, 0.9)},
            unfamiliar={"plain": (0.5, 0.9), "bitbayes": (0.52, 0.4)},
        ),
        "bitbayes helps in part: log loss and ECE are better than before (0.300 against 0.400, 3.0% "
        "against 8.0%); neither it nor plain tells unfamiliar inputs from the data (AUROC 52.0% and "
        "50.0%).",
        ["better", "same"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_outcome_is_said_as_it_is(case: str) -> None:
    audit, verdict, changes = CASES[case]
    assert write_verdict(audit) == verdict
    assert [each.change for each in compare(audit)] == changes


def test_a_comparison_has_the_deciding_measure_and_the_best_other() -> None:
    normal, unfamiliar = compare(outcome((0.3, 0.01, 0.9)))
    assert (normal.kind, normal.title) == ("normal", "Normal inputs")
    assert (normal.measure, normal.before, normal.after) == ("calibration error (ECE), %", "8.0", "1.0")
    assert (normal.first, normal.name, normal.rival) == ("plain", "bitbayes", "temperature scaling, 3.0")
    assert normal.detail == (
        "Confidence 90.0%, accuracy 90.0% (before: 90.0 / 90.0). No clear miscalibration."
    )
    assert (unfamiliar.measure, unfamiliar.before, unfamiliar.after) == ("of 100 are stopped", "60", "66")
    assert (unfamiliar.change, unfamiliar.rival) == ("same", "energy, 66")
    assert unfamiliar.detail == "AUROC 85.0% (before: 80.0)."
    by_accuracy = compare(outcome((0.3, 0.03, 0.95)))[0]
    assert (by_accuracy.measure, by_accuracy.before, by_accuracy.after) == ("accuracy, %", "90.0", "95.0")
    by_ranking = compare(outcome(unfamiliar=(0.9, 0.34)))[1]
    assert (by_ranking.measure, by_ranking.before, by_ranking.after) == ("AUROC, %", "80.0", "90.0")


def test_each_set_has_a_comparison_of_its_own() -> None:
    audit = outcome(unfamiliar=(0.9, 0.2))
    (easy,) = audit.outliers
    worse = on_outliers(UNFAMILIAR | {"bitbayes": (0.7, 0.5)}, always)
    hard = replace(easy, name="hard ones", scores=worse)
    found = compare(replace(audit, outliers=[easy, hard]))
    assert [(each.title, each.before, each.after, each.change) for each in found[1:]] == [
        ("unfamiliar", "60", "80", "better"),
        ("hard ones", "60", "50", "worse"),
    ]


def test_on_scaled_inputs_the_comparison_says_how_many_answers_are_right() -> None:
    audit = make_audit()
    assert [each.title for each in compare(audit)][-1] == "Test inputs × 2,000"
    assert compare(audit)[-1].detail.endswith(" 87.5% of the answers there are right.")


def test_a_gap_at_some_confidences_is_told_apart_from_chance() -> None:
    detail = compare(outcome())[0].detail  # an ECE of 3%
    assert detail.endswith(
        "Calibrated on average, but not at each confidence: ECE 3.0%, and at most 1.2% would be chance."
    )
    audit = outcome()
    sure = replace(audit.test["bitbayes"], confidence=0.99)
    found = compare(replace(audit, test=audit.test | {"bitbayes": sure}))[0].detail
    assert found.endswith("Overconfident by 9.0 points.")


THREE = {"ensemble": (0.2, 0.02, 0.93), "laplace": (0.25, 0.03, 0.9), "plain": (0.4, 0.08, 0.9)}


def test_without_bitbayes_the_best_is_named_and_nothing_is_advertised() -> None:
    near = {"ensemble": (0.8, 0.4), "laplace": (0.9, 0.2), "plain": (0.8, 0.4)}
    audit = audit_of(THREE, unfamiliar=near)
    assert write_verdict(audit) == (
        "If you accept 95% of normal inputs, laplace stops the most unfamiliar inputs: 80 of 100 (ensemble: "
        "60); on normal inputs ensemble has the lowest log loss: 0.200 (laplace: 0.250)."
    )
    assert [(each.first, each.name, each.change) for each in compare(audit)] == [
        ("laplace", "ensemble", "better"),
        ("ensemble", "laplace", "better"),
    ]
    level = audit_of(THREE | {"laplace": (0.2, 0.02, 0.93)}, unfamiliar=dict.fromkeys(near, (0.8, 0.4)))
    assert write_verdict(level) == (
        "On unfamiliar inputs no predictor is clearly best; on normal inputs ensemble and laplace are not "
        "clearly apart."
    )


def test_a_single_predictor_is_called_calibrated_or_not() -> None:
    audit = audit_of({"forest": (0.2, 0.01, 0.9)})
    assert write_verdict(audit) == "Confidence 90.0%, accuracy 90.0%. No clear miscalibration."
    assert compare(audit) == []


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


# Properties of random audits. Many numbers are equal, and many differences are hardly noticeable.
rates = st.sampled_from([0.0, 0.004, 0.01, 0.011, 0.02, 0.04, 0.3, 0.45, 0.5, 0.55, 0.62, 0.9, 0.996, 1.0])
losses = st.sampled_from([0.0, 0.2, 0.205, 0.211, 0.25, 1.0, 3.0])
NAMES = ("plain", "temperature", "energy", "bitbayes", "an ensemble")


@st.composite
def audits(draw: st.DrawFn, *, ours: bool) -> Audit:
    names = [name for name in NAMES if ours or name != "bitbayes"]
    names = [name for name in names if name in ("plain", "bitbayes") or draw(st.booleans())]
    if len(names) < 2:
        names.append("another")
    unclear = draw(
        st.sets(st.tuples(st.sampled_from(names), st.sampled_from(("nll", "ece", "auroc", "fpr95"))))
    )
    pairs = st.none() | st.fixed_dictionaries({name: st.tuples(rates, rates) for name in names})
    normal = {name: draw(st.tuples(losses, rates, rates)) for name in names}
    if "energy" in normal:
        normal["energy"] = normal["plain"]
    return audit_of(
        normal,
        unfamiliar=draw(pairs),
        far=draw(pairs),
        given=draw(st.booleans()),
        clear=lambda name, other, measure: (name, measure) not in unclear,
        validation=draw(st.sampled_from([(40, 0), (40, 3), (1000, 0), (1000, 50)])),
    )


def beats(audit: Audit, kind: str, name: str, other: str) -> tuple[bool, bool]:
    """Whether a column is clearly better by a measure, and clearly worse by one: computed anew."""
    scores = audit.test if kind == "normal" else audit.groups[kind].scores
    mine: Any = scores[name]
    theirs: Any = scores[other]
    better = worse = False
    for measure in ("nll", "ece", "accuracy") if kind == "normal" else ("auroc", "fpr95"):
        a, b = getattr(mine, measure), getattr(theirs, measure)
        if abs(a - b) <= 0.01 or mine.against[other][measure] == "same":
            continue
        if measure == "ece" and max(a, b) <= 0.012:  # both within noise
            continue
        if kind != "normal" and 0.4 <= mine.auroc <= 0.6 and 0.4 <= theirs.auroc <= 0.6:
            continue
        larger = (a > b) == (measure in LARGER_IS_BETTER)
        better, worse = better or larger, worse or not larger
    return better, worse


def number(text: str) -> float:
    """A number as a report writes it; what is only bounded is moved over the bound."""
    return float(text.replace("<1", "0.5").replace(">99", "99.5").rstrip("%"))


def said_everywhere(audit: Audit) -> list[str]:
    parts: list[Any] = [*compare(audit), *advise(audit), *find_alerts(audit)]
    return [write_verdict(audit), *(str(value) for part in parts for value in vars(part).values())]


@settings(max_examples=300, deadline=None)
@given(audits(ours=True))
def test_no_verdict_contradicts_its_numbers(audit: Audit) -> None:
    verdict = write_verdict(audit)
    rivals = [name for name in audit.methods if name != "bitbayes"]
    counted = ["normal"]
    if "unfamiliar" in audit.groups and any(each.kind == "given" for each in audit.outliers):
        counted.append("unfamiliar")
    wins = [
        kind
        for kind in counted
        if all(beats(audit, kind, "bitbayes", other) == (True, False) for other in rivals)
    ]
    losses = [
        kind
        for kind in ["normal", *audit.groups]
        if any(beats(audit, kind, "bitbayes", other)[1] for other in rivals)
    ]
    assert sorted(gains(audit)) == sorted(wins)
    assert verdict.startswith("bitbayes helps") == bool(wins)
    assert verdict.startswith("bitbayes helps:") <= (not losses)
    if "makes this classifier worse" in verdict:
        found = [beats(audit, kind, "bitbayes", "plain") for kind in ["normal", *audit.groups]]
        assert (False, True) in found and not any(better for better, _ in found)
    # The numbers of each clause stand as its words say.
    for less, mine, _, before, other in re.findall(
        r"it stops (only )?(\S+) of 100 ([\w-]+ )(?:ones|inputs) \(before: ([^,)]+)(?:, [^:]+: ([^)]+))?\)"
        r"(?!, not clearly)",
        verdict,
    ):
        assert number(mine) <= number(other or before) if less else number(mine) >= number(other or before)
        assert less or number(mine) >= number(before)
    for word, mine, other in re.findall(
        r"ranks [\w-]+ inputs (\w+) than [^(]+ \(AUROC (\S+) and (\S+)\)", verdict
    ):
        assert (number(mine) >= number(other)) == (word == "better") or mine == other
    said = r"((?:(?:log loss|ECE|accuracy)(?:, | and )?)+) (?:is|are) (better|worse) than [^(]+ \(([^)]+)\)"
    for measures, word, text in re.findall(said, verdict):
        names, pairs = re.findall("log loss|ECE|accuracy", measures), text.split(", ")
        for measure, pair in zip(names, pairs, strict=True):
            mine, other = map(number, pair.split(" against "))
            assert mine >= other if (measure == "accuracy") == (word == "better") else mine <= other
    if "accuracy and calibration stay" in verdict:
        assert beats(audit, "normal", "bitbayes", "plain") == (False, False)
    for each in compare(audit):
        kind = each.kind  # each has one set
        title = each.rival.rsplit(", ", 1)[0] or each.first
        rival = next(name for name in rivals if word_of(name) == title)
        better, worse = beats(audit, kind, "bitbayes", rival)
        assert each.change == {
            (True, False): "better", (False, True): "worse", (True, True): "mixed", (False, False): "same"
        }[better, worse]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(audits(ours=True))
def test_each_reason_is_a_fact(audit: Audit) -> None:
    reasons = find_reasons(audit)
    n, errors = audit.sizes["validation"], audit.errors["validation"]
    assert ("few" in reasons) == (n < 200 or errors == 0)
    for name, rival, expected in (
        ("temperature", "temperature", (False, False)),
        ("shift", "plain", (False, True)),
    ):
        if name in reasons:
            assert beats(audit, "normal", "bitbayes", rival) == expected
            assert beats(audit, "normal", "temperature", "plain") == ((not expected[1]), expected[1])
    if "calibrated" in reasons:
        assert audit.test["plain"].ece <= 0.012
    if "energy" in reasons:
        assert beats(audit, "unfamiliar", "bitbayes", "energy") == (False, False)
        assert audit.groups["unfamiliar"].scores["bitbayes"].fpr95 < 0.5
    if "through" in reasons:
        assert audit.groups["unfamiliar"].scores["bitbayes"].fpr95 >= 0.5
    if "blind" in reasons:
        assert all(0.4 <= each.auroc <= 0.6 for each in audit.groups["unfamiliar"].scores.values())
    said = [reason in write_verdict(audit) for reason in reasons.values()]
    assert not any(said) if gains(audit) else all(said)


@settings(max_examples=200, deadline=None)
@given(audits(ours=False))
def test_predictors_are_compared_fairly(audit: Audit) -> None:
    verdict = write_verdict(audit)
    assert not any("bitbayes" in text for text in said_everywhere(audit))
    for kind, words in (
        ("normal", "[Oo]n normal inputs ([^;]+?) has the lowest"),
        ("unfamiliar", "(?:^|inputs, |; )(?!If)([^;,]+?) stops the most (?:unfamiliar|noise) inputs"),
        ("far", "(?:^|inputs, |; )(?!If)([^;,]+?) stops the most far-away inputs"),
    ):
        found = re.search(words, verdict)
        if found:
            (name,) = (name for name in audit.methods if word_of(name) == found[1])
            rest = [other for other in audit.methods if other != name]
            if kind == "normal" and len(rest) > 1:  # energy has the probabilities of plain
                rest = [other for other in rest if other != "energy"]
            assert all(beats(audit, kind, name, other) == (True, False) for other in rest)


@settings(max_examples=150, deadline=None)
@given(st.booleans().flatmap(lambda ours: audits(ours=ours)))
def test_every_sentence_is_written_as_a_sentence(audit: Audit) -> None:
    for text in said_everywhere(audit):
        assert not re.search(r" %(?!$)|\(\)|  (?! )|None|;\.|: ;|\.\.", text.split("\n")[0]), text
    assert re.match(r"[A-Za-z]", write_verdict(audit)) and write_verdict(audit).endswith(".")
    for advice in advise(audit):
        compile(advice.code, "advice", "exec")
        assert advice.text.endswith(":" if advice.code else ".")
