"""The verdict of an audit, written from its numbers: one sentence, three comparisons, and what to do.

The sentences must hold for every outcome. bitbayes may help, change nothing, or do harm, and each of the
three comparisons (familiar, unfamiliar and far inputs) can come out in its own way.
"""

import math
from dataclasses import dataclass
from typing import Literal

from bitbayes.auditing.findings import Audit, OutlierScores, TestScores
from bitbayes.auditing.words import per_hundred, percent

Change = Literal["better", "same", "worse"]

NOTICEABLE = 0.005  # a difference of two rates: half a percentage point
NOTICEABLE_CHANGE = 0.01  # against the plain network; a smaller one counts as none
SMALL_CHANGE = 0.02  # up to this a change that is not significant is called "as before"
CHANCE = 0.4, 0.6  # an AUROC between these is hardly better or worse than chance


@dataclass(frozen=True)
class Comparison:
    """The same number of the plain network and of bitbayes, on one kind of inputs.

    Attributes:
        kind: "familiar", "unfamiliar" or "far".
        title: the kind in words.
        measure: what the numbers are.
        plain, bitbayes: the numbers, as text.
        change: whether bitbayes is "better", the "same" or "worse".
        detail: a sentence with further numbers.
    """

    kind: str
    title: str
    measure: str
    plain: str
    bitbayes: str
    change: Change
    detail: str


@dataclass(frozen=True)
class Advice:
    """What to do, and the lines of Python that do it (none if there is nothing to run)."""

    text: str
    code: str = ""


def compare(audit: Audit) -> list[Comparison]:
    """Return the comparisons on familiar, unfamiliar and far inputs. The latter two need outliers."""
    comparisons = [_compare_familiar(audit)]
    if "unfamiliar" in audit.groups:
        comparisons.append(_compare_outliers(audit, "unfamiliar", "Unfamiliar inputs"))
    if "far" in audit.groups:
        comparisons.append(_compare_outliers(audit, "far", "Far-away inputs"))
    return comparisons


def write_verdict(audit: Audit) -> str:
    """Return the verdict in one sentence: what is better, what stays the same, and what is worse."""
    # The separation from unfamiliar inputs comes first.
    order = ("unfamiliar", "far", "familiar")
    comparisons = sorted(compare(audit), key=lambda each: order.index(each.kind))
    clauses: dict[Change, list[str]] = {"better": [], "same": [], "worse": []}
    for each in comparisons:
        clauses[each.change].append(_clause(audit, each))
    better, same, worse = _join(clauses["better"]), "; ".join(clauses["same"]), _join(clauses["worse"])
    if better and worse:
        return f"bitbayes helps in part: {'; '.join(filter(None, (better, same)))}; but {worse}."
    if worse:
        return f"bitbayes makes this classifier worse: {'; '.join(filter(None, (worse, same)))}."
    if better:
        # No change on familiar inputs is enough: bitbayes is for the unfamiliar ones.
        in_part = any(each.kind == "unfamiliar" and each.change == "same" for each in comparisons)
        opening = "bitbayes helps in part" if in_part else "bitbayes helps"
        return f"{opening}: {'; '.join(filter(None, (better, same)))}."
    return f"bitbayes makes no clear difference here: {same}."


def advise(audit: Audit) -> list[Advice]:
    """Return what to do, the most important first."""
    changes = {each.kind: each.change for each in compare(audit)}
    separation = [changes.get("unfamiliar"), changes.get("far")]
    advice: list[Advice] = []
    if changes["familiar"] == "worse":
        if "better" in separation and "worse" not in separation:
            advice.append(
                Advice(
                    "Keep the plain network’s probabilities. Use bitbayes only to refuse inputs that are "
                    "unlike the data:",
                    f"{SET_UP}\n{REFUSE}",
                )
            )
        else:
            advice.append(_do_not_use(audit))
    elif "worse" in separation:
        advice.append(_do_not_use(audit) if "better" not in changes.values() else _choose_yourself(changes))
    elif "better" in changes.values():
        advice.append(Advice("Use bitbayes instead of the plain probabilities:", f"{SET_UP}\n{PREDICT}"))
        if separation != [None, None]:
            advice.append(Advice("Refuse inputs that are unlike the data:", REFUSE))
    else:
        advice.append(_keep(audit))
    if _is_blind(audit):
        advice.append(
            Advice(
                "To this network the unfamiliar inputs look like its own data: neither its confidence nor "
                "the score of bitbayes tells them apart. Train it with examples of such inputs, or use a "
                "network with richer features."
            )
        )
    if "unfamiliar" not in changes or all(each.kind != "given" for each in audit.outliers):
        advice.append(
            Advice(
                "Audit again with inputs of your own that belong to no class. They say more than noise:",
                'bb.audit(model, train, validation, test, outliers={"name": inputs})',
            )
        )
    return advice


IMPORT = "import bitbayes as bb"
SET_UP = f"{IMPORT}\n\nbayes = bb.Laplace(model)\nbayes.fit(train_loader)\nbayes.tune(val_loader)"
PREDICT = "probs = bayes.predict_proba(x)"
REFUSE = "t = bayes.threshold(val_loader, accept=0.95)\naccepted = bayes.score(x) >= t"
SCALE = f"{IMPORT}\n\nscaled = bb.TemperatureScaling(model).fit(val_loader)\nprobs = scaled.predict_proba(x)"


def calibration_gap(scores: TestScores, n: int) -> float:
    """Return the mean confidence minus the accuracy, or 0 if that difference is not worth mentioning.

    It is not worth mentioning within two standard errors of the accuracy on n inputs, or within
    `NOTICEABLE`.
    """
    gap = scores.confidence - scores.accuracy
    two_standard_errors = 2 * math.sqrt(scores.accuracy * (1 - scores.accuracy) / n)
    return 0.0 if abs(gap) <= max(two_standard_errors, NOTICEABLE) else gap


def describe_gap(scores: TestScores, n: int) -> str:
    """Return whether a method is overconfident, and by how much."""
    gap = calibration_gap(scores, n)
    if gap == 0:
        return "calibrated on average"  # overconfidence on some inputs can cancel underconfidence on others
    return f"{'over' if gap > 0 else 'under'}confident by {percent(abs(gap))} points"


def _describe_gaps(plain: TestScores, ours: TestScores, n: int) -> str:
    before, after = describe_gap(plain, n), describe_gap(ours, n)
    if before == after:
        return f"both are {before}"
    return f"plain is {before}, bitbayes {after}"


def change_of(scores: TestScores | OutlierScores, plain: TestScores | OutlierScores, name: str) -> Change:
    """Return whether a score changed noticeably against the plain network, and clearly beyond chance."""
    if abs(getattr(scores, name) - getattr(plain, name)) <= NOTICEABLE_CHANGE:
        return "same"
    change = next(iter(scores.against.values()))[name]  # the plain network comes first
    return "better" if change == "better" else "worse" if change == "worse" else "same"


def _compare_familiar(audit: Audit) -> Comparison:
    plain, ours = audit.test["plain"], audit.test["bitbayes"]
    changes = {name: change_of(ours, plain, name) for name in ("ece", "accuracy")}
    change: Change = "same"
    if "worse" in changes.values():
        change = "worse"
    elif "better" in changes.values():
        change = "better"
    # Show the measure that decides.
    shown, measure = "ece", "calibration error (ECE), %"
    if changes["ece"] != change:
        shown, measure = "accuracy", "accuracy, %"
    n = audit.sizes["test"]
    return Comparison(
        kind="familiar",
        title="Familiar inputs",
        measure=measure,
        plain=percent(getattr(plain, shown)),
        bitbayes=percent(getattr(ours, shown)),
        change=change,
        detail=(
            f"Claims {percent(plain.confidence)} → {percent(ours.confidence)} %, and is right "
            f"{percent(plain.accuracy)} → {percent(ours.accuracy)} % of the time: "
            f"{_describe_gaps(plain, ours, n)}."
        ),
    )


def _compare_outliers(audit: Audit, kind: str, title: str) -> Comparison:
    group = audit.groups[kind]
    plain, ours = group.scores["plain"], group.scores["bitbayes"]
    by_auroc, by_fpr95 = change_of(ours, plain, "auroc"), change_of(ours, plain, "fpr95")
    # If the two disagree, there is no clear change. An AUROC that stays near chance is no change either.
    change = by_auroc if by_fpr95 == "same" else by_fpr95 if by_auroc in ("same", by_fpr95) else "same"
    if _is_chance(plain) and _is_chance(ours):
        change = "same"
    before, after, measure = per_hundred(plain.fpr95), per_hundred(ours.fpr95), "of 100 get through"
    other = f"AUROC {percent(plain.auroc)} → {percent(ours.auroc)} %"
    if by_auroc == change != by_fpr95:  # AUROC decides, so it is shown
        other = f"{before} → {after} {measure}"
        before, after, measure = percent(plain.auroc), percent(ours.auroc), "AUROC, %"
    return Comparison(
        kind=kind,
        title=title,
        measure=measure,
        plain=before,
        bitbayes=after,
        change=change,
        detail=(
            f"{other}; mean confidence {percent(plain.confidence)} → {percent(ours.confidence)} % "
            f"(a blind guess: {percent(1 / audit.classes)} %)."
        ),
    )


def _clause(audit: Audit, comparison: Comparison) -> str:
    """Return the part of the verdict about one kind of inputs."""
    if comparison.kind == "familiar":
        return _familiar_clause(audit, comparison)
    scores = audit.groups[comparison.kind].scores
    plain, ours = scores["plain"], scores["bitbayes"]
    before, after = per_hundred(plain.fpr95), per_hundred(ours.fpr95)
    aurocs = f"{percent(plain.auroc)} → {percent(ours.auroc)} %"
    inputs = "unfamiliar inputs" if comparison.kind == "unfamiliar" else "far-away inputs"
    if _is_chance(plain) and _is_chance(ours):
        blind = "so this network cannot tell them from its own data"
        return f"AUROC on {inputs} stays at chance ({aurocs}), {blind}"
    through = change_of(ours, plain, "fpr95")
    if comparison.change != through:
        if comparison.change == "same":  # AUROC says the opposite
            return f"on {inputs} the scores disagree (AUROC {aurocs}; {before} → {after} of 100 get through)"
        return f"it ranks {inputs} {comparison.change} (AUROC {aurocs})"
    if through == "same" and abs(ours.fpr95 - plain.fpr95) <= SMALL_CHANGE:
        return f"of 100 {inputs} about as many get through ({before} → {after})"
    if through == "same":  # there are too few inputs
        return f"it is not clear whether fewer {inputs} get through ({before} → {after} of 100)"
    counts = {"0": "none", "100": "all"}
    return f"of 100 {inputs}, {counts.get(after, after)} get through instead of {counts.get(before, before)}"


def _familiar_clause(audit: Audit, comparison: Comparison) -> str:
    plain, ours = audit.test["plain"], audit.test["bitbayes"]
    errors = f"calibration error {percent(plain.ece)} → {percent(ours.ece)} %"
    if comparison.change != change_of(ours, plain, "ece"):  # the accuracy decides
        verb = "rises" if comparison.change == "better" else "falls"
        return f"accuracy {verb} from {percent(plain.accuracy)} to {percent(ours.accuracy)} %"
    if comparison.change == "better":
        return f"familiar inputs are better calibrated ({errors})"
    if comparison.change == "worse":
        return f"familiar inputs are less well calibrated ({errors})"
    if abs(ours.ece - plain.ece) <= SMALL_CHANGE:
        return "familiar inputs are as well calibrated as before"
    return f"it is not clear whether familiar inputs are better calibrated ({errors})"  # they are too few


def _join(clauses: list[str]) -> str:
    """Join clauses to a sentence. A verb that two clauses share is written once.

    >>> _join(["of 9 cats, 2 get through instead of 3", "of 9 dogs, 4 get through instead of 5"])
    'of 9 cats, 2 get through instead of 3; of 9 dogs, 4 instead of 5'
    """
    verb = " get through instead"
    later = [each.replace(verb, " instead") if verb in clauses[0] else each for each in clauses[1:]]
    return "; ".join([*clauses[:1], *later])


def _is_chance(scores: OutlierScores) -> bool:
    return CHANCE[0] <= scores.auroc <= CHANCE[1]


def _is_blind(audit: Audit) -> bool:
    """Return whether neither method separates the unfamiliar inputs from the data."""
    if "unfamiliar" not in audit.groups:
        return False
    scores = audit.groups["unfamiliar"].scores
    return _is_chance(scores["plain"]) and _is_chance(scores["bitbayes"])


def _do_not_use(audit: Audit) -> Advice:
    return Advice(
        "Keep the plain network. Before you try again, check that the validation data are like the test "
        f"data, and that there are enough of them ({audit.sizes['validation']:,} here)."
    )


def _choose_yourself(changes: dict[str, Change]) -> Advice:
    """Return the code to use what is better: the probabilities, the score, or both."""
    lines = [SET_UP]
    if changes["familiar"] == "better":
        lines.append(PREDICT)
    if "better" in (changes.get("unfamiliar"), changes.get("far")):
        lines.append(REFUSE)
    return Advice(
        "Decide by the inputs that you expect. If the gain matters more to you than the loss:",
        "\n".join(lines),
    )


def _keep(audit: Audit) -> Advice:
    if change_of(audit.test["temperature"], audit.test["plain"], "ece") == "better":
        return Advice("Temperature scaling is enough here:", SCALE)
    return Advice("Keep the plain network: bitbayes brings no clear gain on these data.")
