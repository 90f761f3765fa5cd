"""The verdict of an audit, written from its numbers: one sentence, and a comparison for each kind of inputs.

The sentences must hold for every outcome. A column may be better, worse, not clearly different, or better by
one measure and worse by another; and that on familiar, on unfamiliar and on far-away inputs. bitbayes is
compared with the best of the other columns, not with the plain network. Inputs that the audit makes up can
cost it the verdict, but cannot win it.
"""

import math
from dataclasses import dataclass

from bitbayes.auditing.findings import Audit, OutlierScores, TestScores
from bitbayes.auditing.relations import (
    Change,
    against_all,
    at_chance,
    best,
    changes,
    kinds,
    others,
    relation,
    scores_of,
    within_noise,
)
from bitbayes.auditing.words import join_names, per_hundred, percent

ACCEPTED = "if you accept 95% of normal inputs"
NOTICEABLE = 0.005  # a difference of two rates: half a percentage point
FEW_VALIDATION = 200  # points; `tune` asks for some hundred
MANY_THROUGH = 0.5  # the share of unfamiliar inputs that get through, from which on "they still do"
# The columns whose names are not words of a sentence.
WORDS = {"temperature": "temperature scaling"}
MEASURE_TITLES = {"nll": "log loss", "ece": "ECE", "accuracy": "accuracy", "auroc": "AUROC"}
KIND_TITLES = {
    "familiar": "Familiar inputs",
    "unfamiliar": "Unfamiliar inputs",
    "noise": "Noise",
    "far": "Far-away inputs",
}


@dataclass(frozen=True)
class Comparison:
    """Two columns on one kind of inputs: bitbayes and the best of the others; or the best two, without it.

    Attributes:
        kind: "familiar", "unfamiliar" or "far".
        title: the kind in words.
        measure: what the numbers are.
        rival, name: the columns, as a sentence names them. `name` is bitbayes, or the best.
        before, after: their numbers, as text.
        change: whether `name` is "better", the "same", "worse", or "mixed".
        detail: further numbers.
        best: the best of all columns, with its interval, and those to which it is not clearly better.
    """

    kind: str
    title: str
    measure: str
    rival: str
    name: str
    before: str
    after: str
    change: Change
    detail: str
    best: str


def compare(audit: Audit) -> list[Comparison]:
    """Return a comparison for each kind of inputs; none if there is only one column."""
    return [_compare(audit, kind) for kind in kinds(audit)] if len(audit.methods) > 1 else []


def write_verdict(audit: Audit) -> str:
    """Return the verdict: what is better, worse, or not clear, and why bitbayes does not help."""
    if len(audit.methods) == 1:
        return _write_alone(audit)
    if not audit.ours:
        return _write_best(audit)
    # Once in the sentence is enough.
    return _write_ours(audit, audit.ours).replace("it stops", f"{ACCEPTED}, it stops", 1)


def word_of(name: str) -> str:
    """Return a column's name in a sentence: not its title, such as "Plain"."""
    return WORDS.get(name, name)


def gains(audit: Audit) -> list[str]:
    """Return the kinds of inputs on which bitbayes is better than every other column, and which count.

    Inputs that the audit made up do not: to stop noise, or inputs × 2,000, a check of their range will do.
    """
    return [kind for kind in _ours_by(audit, "better") if not is_made_up(audit, kind)]


def is_made_up(audit: Audit, kind: str) -> bool:
    """Return whether the audit generated these inputs itself."""
    return kind == "far" or (kind == "unfamiliar" and not has_given(audit))


def has_given(audit: Audit) -> bool:
    """Return whether the user gave outliers."""
    return any(each.kind == "given" for each in audit.outliers)


def find_reasons(audit: Audit) -> dict[str, str]:
    """Return why bitbayes may bring no gain: a word for each reason, and the reason as part of a sentence.

    Each of them is a fact about this audit. That it is the cause is likely, not certain.
    """
    assert audit.ours
    n, errors = audit.sizes["validation"], audit.errors.get("validation")
    reasons: dict[str, str] = {}
    if n < FEW_VALIDATION or errors == 0:
        wrong = "" if errors is None else f", {errors or 'none'} of them wrong"
        reasons["few"] = (
            f"only {n:,} validation points{wrong}"
            if n < FEW_VALIDATION
            else (f"none of the {n:,} validation points is wrong")
        )
    familiar = relation(audit, "familiar", audit.ours, audit.base)
    if "temperature" in audit.test and audit.base != "temperature":
        temperature = relation(audit, "familiar", "temperature", audit.base)
        if temperature == familiar == "worse":
            reasons["shift"] = "temperature scaling got worse, too"
        if temperature == "better" and relation(audit, "familiar", audit.ours, "temperature") == "same":
            reasons["temperature"] = "temperature scaling does as well"
    plain = audit.test[audit.base]
    if within_noise(plain) and familiar in ("same", "worse"):
        reasons["calibrated"] = f"the network is calibrated already (ECE {percent(plain.ece)}%, within noise)"
    if "unfamiliar" in audit.groups:
        inputs = inputs_of(audit, "unfamiliar")
        ours = audit.groups["unfamiliar"].scores[audit.ours]
        if is_blind(audit, "unfamiliar"):
            reasons["blind"] = f"to this network {inputs} look like its own data"
        elif ours.fpr95 >= MANY_THROUGH:
            reasons["through"] = f"{per_hundred(ours.fpr95)} of 100 {inputs} still get through"
        elif "energy" in audit.test and relation(audit, "unfamiliar", audit.ours, "energy") == "same":
            reasons["energy"] = f"energy stops {inputs} as well"
    return reasons


def is_blind(audit: Audit, kind: str) -> bool:
    """Return whether no column separates these inputs from the data."""
    return all(at_chance(audit, kind, name) for name in audit.methods)


def inputs_of(audit: Audit, kind: str) -> str:
    """Return what a sentence calls this kind of inputs.

    What is unfamiliar is noise if the user gave no outliers.
    """
    if kind == "unfamiliar" and not has_given(audit):
        return "noise inputs"
    return {"familiar": "familiar inputs", "unfamiliar": "unfamiliar inputs", "far": "far-away inputs"}[kind]


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


def _ours_by(audit: Audit, change: Change) -> list[str]:
    """Return the kinds of inputs on which bitbayes relates to the others in this way."""
    assert audit.ours
    return [kind for kind in _ordered(audit) if against_all(audit, kind, audit.ours)[0] == change]


def _ordered(audit: Audit) -> list[str]:
    """Return the kinds of inputs. The separation from unfamiliar inputs comes first."""
    return [*kinds(audit)[1:], "familiar"]


def _write_ours(audit: Audit, ours: str) -> str:
    better, same = _ours_by(audit, "better"), _ours_by(audit, "same")
    worse = _ours_by(audit, "worse") + _ours_by(audit, "mixed")
    name = word_of(ours)

    def said(some: list[str]) -> str:
        return "; ".join(_clause(audit, kind, ours, *against_all(audit, kind, ours)) for kind in some)

    if gains(audit):
        # No clear change on familiar inputs is enough: bitbayes is for the unfamiliar ones.
        in_part = worse or ("unfamiliar" in same and not is_made_up(audit, "unfamiliar"))
        but = f"; but {said(worse)}" if worse else ""
        return f"{name} helps{' in part' if in_part else ''}: {said(better + same)}{but}."
    unclear = f"no clear gain on {join_names([inputs_of(audit, kind) for kind in same])}" if same else ""
    reasons = list(find_reasons(audit).values())
    why = f" Likely reason{'s' if len(reasons) > 1 else ''}: {'; '.join(reasons)}." if reasons else ""
    made_up = join_names([inputs_of(audit, kind).removesuffix(" inputs") for kind in better])
    except_on = f", except on inputs that the audit made up ({made_up})" if better else ""
    opening = f"{name} does not help here{except_on}"
    against_base = {relation(audit, kind, ours, audit.base) for kind in kinds(audit)}
    if "worse" in against_base and not against_base & {"better", "mixed"}:
        opening = f"{name} makes this classifier worse"
    return f"{opening}: {'; '.join(filter(None, (said(worse), unclear)))}.{why}"


def _write_best(audit: Audit) -> str:
    """Return the verdict on several predictors without bitbayes: which one is best, where one is."""
    clauses = []
    for kind in _ordered(audit):
        name, rest = best(audit, kind)
        inputs, number = inputs_of(audit, kind), _number(audit, kind, name)
        if not rest:
            measure = "log loss" if kind == "familiar" else "stops"
            clauses.append(f"on {inputs} {word_of(name)} is best: {measure} {number}")
        elif len(rest) == len(others(audit, kind, name)):
            clauses.append(f"on {inputs} no predictor is clearly best")
        else:
            names = join_names([word_of(each) for each in [name, *rest]])
            clauses.append(f"on {inputs} {names} are not clearly apart")
    return f"O{'; '.join(clauses)[1:]}."


def _write_alone(audit: Audit) -> str:
    """Return the verdict on a single predictor: whether it is calibrated."""
    scores = audit.test[audit.base]
    return f"{_write_rates(scores)}. {_describe_calibration(scores, audit.sizes['test'])}"


def _describe_best(audit: Audit, kind: str, name: str, rest: list[str]) -> str:
    """Name the best column by the first measure, and those to which it is not clearly better."""
    measure = "Lowest log loss" if kind == "familiar" else "Most stopped"
    unclear = f" Not clearly worse: {join_names([word_of(each) for each in rest])}." if rest else ""
    return f"{measure}: {word_of(name)}, {_number(audit, kind, name)}.{unclear}"


def _number(audit: Audit, kind: str, name: str) -> str:
    """Return the number by which columns are sorted on this kind of inputs, with its interval."""
    scores = scores_of(audit, kind, name)
    if isinstance(scores, TestScores):
        low, high = scores.intervals["nll"]
        return f"{scores.nll:.3f} ({low:.3f}–{high:.3f})"
    low, high = scores.intervals["fpr95"]
    return f"{_stopped(scores.fpr95)} of 100 ({_stopped(high)}–{_stopped(low)})"


def _stopped(through: float) -> str:
    """Return how many of 100 a threshold stops that lets this share through."""
    return per_hundred(1 - through)


def _clause(audit: Audit, kind: str, name: str, change: Change, rival: str) -> str:
    """Return the part of the verdict about one kind of inputs."""
    if kind == "familiar":
        return _familiar_clause(audit, name, change, rival)
    ours, theirs = audit.groups[kind].scores[name], audit.groups[kind].scores[rival]
    inputs, other = inputs_of(audit, kind), word_of(rival)
    mine, their = _stopped(ours.fpr95), _stopped(theirs.fpr95)
    if at_chance(audit, kind, name) and at_chance(audit, kind, rival):
        aurocs = f"AUROC {percent(ours.auroc)}% and {percent(theirs.auroc)}%"
        return f"neither it nor {other} tells {inputs} from the data ({aurocs})"
    if change == "mixed":
        return (
            f"on {inputs} the measures disagree (AUROC {percent(ours.auroc)}%, {other}: "
            f"{percent(theirs.auroc)}%; {mine} of 100 stopped, {other}: {their})"
        )
    if change == "same":
        return f"it stops {mine} of 100 {inputs}, not clearly more or fewer than {other} ({their})"
    if changes(audit, kind, name, rival)["fpr95"] == change:
        return f"it stops {'only ' if change == 'worse' else ''}{mine} of 100 {inputs} ({other}: {their})"
    return (
        f"it ranks {inputs} {change} than {other} (AUROC {percent(ours.auroc)}% and {percent(theirs.auroc)}%)"
    )


def _familiar_clause(audit: Audit, name: str, change: Change, rival: str) -> str:
    found, other = changes(audit, "familiar", name, rival), word_of(rival)

    def said(wanted: str) -> str:
        return join_names([_pair(audit, m, name, rival) for m, each in found.items() if each == wanted])

    if change == "same":
        numbers = _pair(audit, "nll", name, rival)
        return f"on familiar inputs there is no clear difference from {other} ({numbers})"
    if change == "mixed":
        parts = f"better than {other} by {said('better')}, worse by {said('worse')}"
        return f"on familiar inputs the measures disagree: {parts}"
    return f"on familiar inputs it is {change} than {other}, by {said(change)}"


def _pair(audit: Audit, measure: str, name: str, rival: str) -> str:
    """Return a measure of two columns on the test data, such as "ECE 1.0% against 3.0%"."""
    numbers = [getattr(audit.test[each], measure) for each in (name, rival)]
    mine, theirs = (f"{each:.3f}" if measure == "nll" else f"{percent(each)}%" for each in numbers)
    return f"{MEASURE_TITLES[measure]} {mine} against {theirs}"


def _compare(audit: Audit, kind: str) -> Comparison:
    first, rest = best(audit, kind)
    if audit.ours:
        name = audit.ours
        change, rival = against_all(audit, kind, name)
    else:
        name = first
        rival = (rest or others(audit, kind, name))[0]
        change = relation(audit, kind, name, rival)
        # It is best by one measure, so that a worse other one makes it mixed.
        change = "mixed" if change == "worse" else change
    measure, before, after = _shown(audit, kind, name, change, rival)
    return Comparison(
        kind=kind,
        title=KIND_TITLES["noise" if kind == "unfamiliar" and not has_given(audit) else kind],
        measure=measure,
        rival=word_of(rival),
        name=word_of(name),
        before=before,
        after=after,
        change=change,
        detail=_detail(audit, kind, name, rival),
        best=_describe_best(audit, kind, first, rest),
    )


def _shown(audit: Audit, kind: str, name: str, change: Change, rival: str) -> tuple[str, str, str]:
    """Return the measure that decides, and its two numbers."""
    found = changes(audit, kind, name, rival)
    order = ("ece", "nll", "accuracy") if kind == "familiar" else ("fpr95", "auroc")
    measure = next((each for each in order if found[each] == change), order[0])
    numbers = [getattr(scores_of(audit, kind, each), measure) for each in (rival, name)]
    if measure == "fpr95":
        return "of 100 are stopped", *map(_stopped, numbers)  # type: ignore[return-value]
    if measure == "nll":
        return "log loss (NLL)", *(f"{each:.3f}" for each in numbers)  # type: ignore[return-value]
    words = {"ece": "calibration error (ECE), %", "accuracy": "accuracy, %", "auroc": "AUROC, %"}
    return words[measure], *map(percent, numbers)  # type: ignore[return-value]


def _detail(audit: Audit, kind: str, name: str, rival: str) -> str:
    mine, theirs = scores_of(audit, kind, name), scores_of(audit, kind, rival)
    other = word_of(rival)
    if isinstance(mine, TestScores) and isinstance(theirs, TestScores):
        return (
            f"{_write_rates(mine)} ({other}: {percent(theirs.confidence)} / {percent(theirs.accuracy)}). "
            f"{_describe_calibration(mine, audit.sizes['test'])}"
        )
    assert isinstance(mine, OutlierScores) and isinstance(theirs, OutlierScores)
    return (
        f"AUROC {percent(mine.auroc)}% ({other}: {percent(theirs.auroc)}). Mean confidence "
        f"{percent(mine.confidence)}% ({other}: {percent(theirs.confidence)}; a blind guess: "
        f"{percent(1 / audit.classes)})."
    )


def _write_rates(scores: TestScores) -> str:
    return f"Confidence {percent(scores.confidence)}%, accuracy {percent(scores.accuracy)}%"


def _describe_calibration(scores: TestScores, n: int) -> str:
    """Say whether a column is calibrated, as far as n test inputs can show."""
    gap = calibration_gap(scores, n)
    if gap:
        return f"{'Over' if gap > 0 else 'Under'}confident by {percent(abs(gap))} points."
    if within_noise(scores):
        return "No clear miscalibration."
    return (
        f"Calibrated on average, but not at each confidence: ECE {percent(scores.ece)}%, and at most "
        f"{percent(scores.floor_interval[1])}% would be chance."
    )
