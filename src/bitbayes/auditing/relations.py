"""How the columns of an audit compare on one kind of inputs: better, worse, no clear difference, or mixed."""

from typing import Literal

from bitbayes.auditing.findings import Audit, OutlierScores, TestScores

Change = Literal["better", "same", "worse", "mixed"]

NOTICEABLE_CHANGE = (
    0.01  # a percentage point of a rate, or 0.01 nats of log loss; a smaller one counts as none
)
CHANCE = 0.4, 0.6  # an AUROC between these is hardly better or worse than chance
# What is compared on each kind of inputs. By the first one the best column is named.
MEASURES = {
    "normal": ("nll", "ece", "accuracy"),
    "unfamiliar": ("fpr95", "auroc"),
    "far": ("fpr95", "auroc"),
}
LOWER_IS_BETTER = ("nll", "ece", "fpr95")


def kinds(audit: Audit) -> list[str]:
    """Return the kinds of inputs that the audit has: normal ones always, the other two with outliers."""
    return ["normal", *(kind for kind in ("unfamiliar", "far") if kind in audit.groups)]


def scores_of(audit: Audit, kind: str, name: str) -> TestScores | OutlierScores:
    """Return the scores of a column on one kind of inputs."""
    return audit.test[name] if kind == "normal" else audit.groups[kind].scores[name]


def within_noise(scores: TestScores) -> bool:
    """Return whether a calibrated model of the same confidences could show this ECE by chance.

    It could if the ECE is at most the upper end of the 95% interval of such a model's ECE.
    """
    return scores.ece <= scores.floor_interval[1]


def at_chance(audit: Audit, kind: str, name: str) -> bool:
    """Return whether a column hardly ranks the data above these outliers, or below them."""
    return CHANCE[0] <= audit.groups[kind].scores[name].auroc <= CHANCE[1]


def changes(audit: Audit, kind: str, name: str, other: str) -> dict[str, str]:
    """Return how each measure of a column compares with another column: "better", "worse" or "same".

    It is the same unless it differs by more than `NOTICEABLE_CHANGE`, and the bootstrap of the paired
    difference excludes 0. Two ECEs that are both within noise are the same; so are two rankings at chance.
    """
    mine, theirs = scores_of(audit, kind, name), scores_of(audit, kind, other)
    found = {}
    for measure in MEASURES[kind]:
        difference = getattr(mine, measure) - getattr(theirs, measure)
        found[measure] = mine.against[other][measure] if abs(difference) > NOTICEABLE_CHANGE else "same"
    if kind == "normal":
        if within_noise(audit.test[name]) and within_noise(audit.test[other]):
            found["ece"] = "same"
    elif at_chance(audit, kind, name) and at_chance(audit, kind, other):
        found = dict.fromkeys(found, "same")
    return found


def relation(audit: Audit, kind: str, name: str, other: str) -> Change:
    """Return how a column compares with another one, over all measures of this kind of inputs.

    One measure that is better is enough if none is worse. If some are better and some worse, it is mixed.
    """
    found = set(changes(audit, kind, name, other).values())
    if {"better", "worse"} <= found:
        return "mixed"
    return "better" if "better" in found else "worse" if "worse" in found else "same"


def others(audit: Audit, kind: str, name: str) -> list[str]:
    """Return the columns to compare with. On normal inputs energy is left out: it repeats the base."""
    rest = [each for each in audit.methods if each != name]
    own = [each for each in rest if each in audit.own_probabilities]
    return own if kind == "normal" and own else rest


def best_first(audit: Audit, kind: str, names: list[str]) -> list[str]:
    """Sort columns by the measures of this kind, the best first. Equal ones keep their order."""

    def worth(name: str) -> list[float]:
        scores = scores_of(audit, kind, name)
        return [
            getattr(scores, measure) * (1 if measure in LOWER_IS_BETTER else -1) for measure in MEASURES[kind]
        ]

    return sorted(names, key=worth)


def against_all(audit: Audit, kind: str, name: str) -> tuple[Change, str]:
    """Return how a column compares with all others together, and with which of them that shows.

    It is better only if it is better than each of them, and worse if it is worse than any. The column that
    shows it is the best of those to which it relates in this way.
    """
    found = {other: relation(audit, kind, name, other) for other in others(audit, kind, name)}
    order: tuple[Change, ...] = ("worse", "mixed", "same", "better")
    change = next(each for each in order if each in found.values())
    return change, best_first(audit, kind, [other for other in found if found[other] == change])[0]


def best(audit: Audit, kind: str) -> tuple[str, list[str]]:
    """Return the best column by the first measure, and the columns to which it is not clearly better."""
    first, *_ = best_first(audit, kind, list(audit.methods))
    rest = [each for each in others(audit, kind, first) if relation(audit, kind, first, each) != "better"]
    return first, rest
