"""The verdict of an audit, written from its numbers: a headline, and a comparison for each set of inputs.

The sentences must hold for every outcome. A column may be better, worse, not clearly different, or better by
one measure and worse by another; and that on normal, on unfamiliar and on far-away inputs. bitbayes is
compared with the best of the other columns, not with the plain network. Inputs that the audit makes up can
cost it the verdict, but cannot win it.
"""

import math
from dataclasses import dataclass, replace

from bitbayes.auditing.findings import Audit, OutlierGroup, OutlierScores, OutlierSet, TestScores
from bitbayes.auditing.relations import (
    MEASURES,
    Change,
    against_all,
    at_chance,
    best,
    best_first,
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
MEASURE_TITLES = {"nll": "log loss", "ece": "ECE", "accuracy": "accuracy"}
SHOWN = {
    "fpr95": "of 100 are stopped",
    "auroc": "AUROC, %",
    "ece": "calibration error (ECE), %",
    "nll": "log loss (NLL)",
    "accuracy": "accuracy, %",
}


@dataclass(frozen=True)
class Comparison:
    """Two columns on one set of inputs: the base and bitbayes; or the best two, without it.

    Attributes:
        kind: "normal" for the test data, "unfamiliar" or "far".
        title: the set.
        measure: what the numbers are.
        first, name: the columns, as a sentence names them. `name` is bitbayes, or the best.
        before, after: their numbers, as text.
        change: whether `name` is "better", the "same", "worse", or "mixed", against the best of all others.
        detail: further numbers.
        rival: the best of the others and its number, if it is not `first`; otherwise "".
    """

    kind: str
    title: str
    measure: str
    first: str
    name: str
    before: str
    after: str
    change: Change
    detail: str
    rival: str


def compare(audit: Audit) -> list[Comparison]:
    """Return a comparison for the test data and each set of outliers; none if there is only one column."""
    if len(audit.methods) == 1:
        return []
    sets = [(_alone(audit, each), each) for each in audit.outliers]
    return [
        _compare(audit, "normal", "Normal inputs"),
        *(_compare(own, kinds(own)[1], each.name) for own, each in sets),
    ]


def _alone(audit: Audit, outlier: OutlierSet) -> Audit:
    """Return the audit as if this were its only set of outliers."""
    group = OutlierGroup([outlier.name], outlier.scores)
    kind = "far" if outlier.kind == "far" else "unfamiliar"
    return replace(audit, outliers=[outlier], groups={kind: group})


def write_verdict(audit: Audit) -> str:
    """Return the verdict: the headline, and the likely reasons if bitbayes does not help."""
    return " ".join(filter(None, (write_headline(audit), write_reasons(audit))))


def write_headline(audit: Audit) -> str:
    """Return in one sentence what is better, worse, or not clear."""
    if len(audit.methods) == 1:
        return _write_alone(audit)
    if not audit.ours:
        return _write_best(audit)
    # Once in the sentence is enough.
    return _write_ours(audit, audit.ours).replace("it stops", f"{ACCEPTED}, it stops", 1)


def write_reasons(audit: Audit) -> str:
    """Return why bitbayes may not help, or nothing."""
    reasons = list(find_reasons(audit).values()) if audit.ours and not gains(audit) else []
    return f"Likely reason{'s' if len(reasons) > 1 else ''}: {'; '.join(reasons)}." if reasons else ""


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
    normal = relation(audit, "normal", audit.ours, audit.base)
    if "temperature" in audit.test and audit.base != "temperature":
        temperature = relation(audit, "normal", "temperature", audit.base)
        if temperature == normal == "worse":
            reasons["shift"] = "temperature scaling got worse, too"
        if temperature == "better" and relation(audit, "normal", audit.ours, "temperature") == "same":
            reasons["temperature"] = "temperature scaling does as well"
    plain = audit.test[audit.base]
    if within_noise(plain) and normal in ("same", "worse"):
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
    return {"normal": "normal inputs", "unfamiliar": "unfamiliar inputs", "far": "far-away inputs"}[kind]


def calibration_gap(scores: TestScores, n: int) -> float:
    """Return the mean confidence minus the accuracy, or 0 if that difference is not worth mentioning.

    It is not worth mentioning within two standard errors of the accuracy on n inputs, or within
    `NOTICEABLE`.
    """
    gap = scores.confidence - scores.accuracy
    two_standard_errors = 2 * math.sqrt(scores.accuracy * (1 - scores.accuracy) / n)
    return 0.0 if abs(gap) <= max(two_standard_errors, NOTICEABLE) else gap


def _ours_by(audit: Audit, change: Change) -> list[str]:
    """Return the kinds of inputs on which bitbayes relates to the others in this way."""
    assert audit.ours
    return [kind for kind in _ordered(audit) if against_all(audit, kind, audit.ours)[0] == change]


def _ordered(audit: Audit) -> list[str]:
    """Return the kinds of inputs. The separation from unfamiliar inputs comes first."""
    return [*kinds(audit)[1:], "normal"]


def _write_ours(audit: Audit, ours: str) -> str:
    better, same = _ours_by(audit, "better"), _ours_by(audit, "same")
    worse = _ours_by(audit, "worse") + _ours_by(audit, "mixed")
    name, counted = word_of(ours), gains(audit)

    def said(some: list[str]) -> str:
        return "; ".join(_clause(audit, kind, ours, *against_all(audit, kind, ours)) for kind in some)

    if counted:
        # No clear change on normal inputs is enough: bitbayes is for the unfamiliar ones. What the audit made
        # up is mentioned only where it counts against bitbayes.
        level = [kind for kind in same if not is_made_up(audit, kind)]
        in_part = worse or "unfamiliar" in level
        but = f"; but {said(worse)}" if worse else ""
        return f"{name} helps{' in part' if in_part else ''}: {said(counted + level)}{but}."
    made_up = join_names([inputs_of(audit, kind).removesuffix(" inputs") for kind in better])
    except_on = f", except on inputs that the audit made up ({made_up})" if better else ""
    opening = f"{name} does not help here{except_on}"
    against_base = {relation(audit, kind, ours, audit.base) for kind in kinds(audit)}
    if "worse" in against_base and not against_base & {"better", "mixed"}:
        opening = f"{name} makes this classifier worse"
    return f"{opening}: {said(worse + same)}." if worse + same else f"{opening}."


def _write_best(audit: Audit) -> str:
    """Return the verdict on several predictors without bitbayes: which one is best, where one is."""
    clauses = []
    for kind in _ordered(audit):
        name, rest = best(audit, kind)
        inputs = inputs_of(audit, kind)
        if not rest:
            second = best_first(audit, kind, others(audit, kind, name))[0]
            mine, theirs = (_shown(audit, kind, MEASURES[kind][0], each) for each in (name, second))
            if kind == "normal":
                said = f"on normal inputs {word_of(name)} has the lowest log loss: {mine}"
            else:
                said = f"{ACCEPTED}, {word_of(name)} stops the most {inputs}: {mine} of 100"
            clauses.append(f"{said} ({word_of(second)}: {theirs})")
        elif len(rest) == len(others(audit, kind, name)):
            clauses.append(f"on {inputs} no predictor is clearly best")
        else:
            names = join_names([word_of(each) for each in [name, *rest]])
            clauses.append(f"on {inputs} {names} are not clearly apart")
    first, *more = clauses
    more = [each.removeprefix(f"{ACCEPTED}, ") if ACCEPTED in first else each for each in more]
    return f"{'; '.join([first[0].upper() + first[1:], *more])}."


def _write_alone(audit: Audit) -> str:
    """Return the verdict on a single predictor: whether it is calibrated."""
    scores = audit.test[audit.base]
    return f"{write_rates(scores)}. {describe_calibration(scores, audit.sizes['test'])}"


def _stopped(through: float) -> str:
    """Return how many of 100 a threshold stops that lets this share through."""
    return per_hundred(1 - through)


def _clause(audit: Audit, kind: str, name: str, change: Change, rival: str) -> str:
    """Return the part of the verdict about one kind of inputs."""
    if kind == "normal":
        return _normal_clause(audit, name, change, rival)
    scores = audit.groups[kind].scores
    ours, theirs, plain = scores[name], scores[rival], scores[audit.base]
    inputs, other = inputs_of(audit, kind), word_of(rival)
    mine, their, before = _stopped(ours.fpr95), _stopped(theirs.fpr95), _stopped(plain.fpr95)
    if at_chance(audit, kind, name) and at_chance(audit, kind, rival):
        aurocs = f"AUROC {percent(ours.auroc)}% and {percent(theirs.auroc)}%"
        return f"neither it nor {other} tells {inputs} from the data ({aurocs})"
    if change == "mixed":
        return (
            f"on {inputs} the measures disagree (AUROC {percent(ours.auroc)}%, {other}: "
            f"{percent(theirs.auroc)}%; {mine} of 100 stopped, {other}: {their})"
        )
    some = f"{mine} of 100 {inputs.replace(' inputs', ' ones') if kind == 'unfamiliar' else inputs}"
    was = f"before: {before}" if rival == audit.base else f"before: {before}, {other}: {their}"
    if change == "same":
        return f"it stops {some} ({was}), not clearly more or fewer than {_as_before(audit, rival)}"
    if changes(audit, kind, name, rival)["fpr95"] == change:
        return f"it stops {'only ' if change == 'worse' else ''}{some} ({was})"
    return (
        f"it ranks {inputs} {change} than {_as_before(audit, rival)} (AUROC {percent(ours.auroc)}% and "
        f"{percent(theirs.auroc)}%)"
    )


def _as_before(audit: Audit, name: str) -> str:
    return "before" if audit.ours and name == audit.base else word_of(name)


def _normal_clause(audit: Audit, name: str, change: Change, rival: str) -> str:
    """Say what happens to accuracy and calibration: against the best of the others, and against the base."""
    found = changes(audit, "normal", name, rival)
    if change == "same":
        against_base = changes(audit, "normal", name, audit.base)
        if "better" not in against_base.values():
            return "accuracy and calibration stay"
        return f"{_pairs(audit, against_base, 'better', name, audit.base)}, as with {word_of(rival)}"
    if change != "mixed":
        return _pairs(audit, found, change, name, rival)
    better, worse = (_pairs(audit, found, each, name, rival) for each in ("better", "worse"))
    return f"on normal inputs the measures disagree: {better}, and {worse}"


def _pairs(audit: Audit, found: dict[str, str], change: str, name: str, rival: str) -> str:
    """Return which measures are better, or worse, than those of a rival: "ECE is … (1.0% against 3.0%)"."""
    some = [measure for measure, each in found.items() if each == change]
    numbers = [" against ".join(_written(audit, measure, each) for each in (name, rival)) for measure in some]
    than = "before" if rival == audit.base else f"with {word_of(rival)}"
    titles, verb = join_names([MEASURE_TITLES[each] for each in some]), "are" if len(some) > 1 else "is"
    return f"{titles} {verb} {change} than {than} ({', '.join(numbers)})"


def _written(audit: Audit, measure: str, name: str) -> str:
    number = getattr(audit.test[name], measure)
    return f"{number:.3f}" if measure == "nll" else f"{percent(number)}%"


def _compare(audit: Audit, kind: str, title: str) -> Comparison:
    if audit.ours:
        name, first = audit.ours, audit.base
        change, rival = against_all(audit, kind, name)
    else:
        name, rest = best(audit, kind)
        first = rival = (rest or best_first(audit, kind, others(audit, kind, name)))[0]
        change = relation(audit, kind, name, rival)
        # It is best by one measure, so that a worse other one makes it mixed.
        change = "mixed" if change == "worse" else change
    measure = _deciding(audit, kind, name, change, rival)
    before, after, other = (_shown(audit, kind, measure, each) for each in (first, name, rival))
    return Comparison(
        kind=kind,
        title=title,
        measure=SHOWN[measure],
        first=word_of(first),
        name=word_of(name),
        before=before,
        after=after,
        change=change,
        detail=_detail(audit, kind, name, first) + _right_there(audit, title),
        rival="" if rival == first else f"{word_of(rival)}, {other}",
    )


def _deciding(audit: Audit, kind: str, name: str, change: Change, rival: str) -> str:
    """Return the measure that decides."""
    found = changes(audit, kind, name, rival)
    order = ("ece", "nll", "accuracy") if kind == "normal" else ("fpr95", "auroc")
    return next((each for each in order if found[each] == change), order[0])


def _shown(audit: Audit, kind: str, measure: str, name: str) -> str:
    number = getattr(scores_of(audit, kind, name), measure)
    if measure == "fpr95":
        return _stopped(number)
    return f"{number:.3f}" if measure == "nll" else percent(number)


def _detail(audit: Audit, kind: str, name: str, first: str) -> str:
    mine, theirs = scores_of(audit, kind, name), scores_of(audit, kind, first)
    before = _as_before(audit, first)
    if isinstance(mine, TestScores) and isinstance(theirs, TestScores):
        return (
            f"{write_rates(mine)} ({before}: {percent(theirs.confidence)} / {percent(theirs.accuracy)}). "
            f"{describe_calibration(mine, audit.sizes['test'])}"
        )
    assert isinstance(mine, OutlierScores) and isinstance(theirs, OutlierScores)
    return f"AUROC {percent(mine.auroc)}% ({before}: {percent(theirs.auroc)})."


def _right_there(audit: Audit, title: str) -> str:
    """Return how many answers are right on scaled test inputs: to stop those costs something."""
    found = next((each for each in audit.scaled if title == f"Test inputs × {each.delta:,g}"), None)
    return f" {percent(found.accuracy[audit.base])}% of the answers there are right." if found else ""


def write_rates(scores: TestScores) -> str:
    """Return confidence and accuracy, as the beginning of a sentence."""
    return f"Confidence {percent(scores.confidence)}%, accuracy {percent(scores.accuracy)}%"


def describe_calibration(scores: TestScores, n: int) -> str:
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
