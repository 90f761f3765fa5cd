"""What to do after an audit: advice that follows from its verdict, with the lines of Python that do it."""

from dataclasses import dataclass

from bitbayes.auditing.findings import Audit
from bitbayes.auditing.relations import against_all, best, best_first, kinds, relation
from bitbayes.auditing.verdict import (
    find_reasons,
    gains,
    has_given,
    inputs_of,
    is_blind,
    is_made_up,
    word_of,
)
from bitbayes.auditing.words import join_names


@dataclass(frozen=True)
class Advice:
    """What to do, and the lines of Python that do it (none if there is nothing to run)."""

    text: str
    code: str = ""


SET_UP = "import bitbayes as bb\n\nbayes = bb.Laplace(model)\nbayes.fit(train_loader)\nbayes.tune(val_loader)"
PREDICT = "probs = bayes.predict_proba(x)"
REFUSE = "t = bayes.threshold(val_loader, accept=0.95)\naccepted = bayes.score(x) >= t"
PLAIN = "probs = model(x).softmax(1)"
SCALE = (
    "import bitbayes as bb\n\nscaled = bb.TemperatureScaling(model).fit(val_loader)\n"
    "probs = scaled.predict_proba(x)"
)
ENERGY = (
    "import torch\n\nwith torch.no_grad():\n"
    "    energy = torch.cat([model(x).logsumexp(1) for x, _ in val_loader])\n"
    "    accepted = model(x).logsumexp(1) >= energy.quantile(0.05)"
)
AGAIN = "bb.audit(model, train, more_validation, test)"
SPLIT = (
    "import torch\n\nboth = torch.utils.data.ConcatDataset([val_set, test_set])\n"
    "val_set, test_set = torch.utils.data.random_split(both, [0.5, 0.5])"
)
OUTLIERS = 'bb.audit(model, train, validation, test, outliers={"name": inputs})'
RICHER = "Train it with examples of such inputs, or use a network with richer features."


def advise(audit: Audit) -> list[Advice]:
    """Return what to do, the most important first."""
    if len(audit.methods) == 1:
        advice: list[Advice] = []
    elif audit.ours is None:
        advice = _choose(audit)
    elif gains(audit):
        advice = _use(audit, audit.ours)
    else:
        advice = _leave(audit, audit.ours)
    if "unfamiliar" in audit.groups and is_blind(audit, "unfamiliar"):
        inputs = inputs_of(audit, "unfamiliar")
        advice.append(Advice(f"Nothing here tells {inputs} from the data. {RICHER}"))
    if not has_given(audit):
        advice.append(
            Advice(
                "Audit again with inputs of your own that belong to no class. They say more than noise:",
                OUTLIERS,
            )
        )
    return advice


def _use(audit: Audit, ours: str) -> list[Advice]:
    """bitbayes is better where it counts: use it there, and there alone if it is worse elsewhere."""
    change, rival = against_all(audit, "normal", ours)
    separation = {kind: against_all(audit, kind, ours) for kind in kinds(audit)[1:]}
    lost = {kind: other for kind, (found, other) in separation.items() if found in ("worse", "mixed")}
    won = [kind for kind, (found, _) in separation.items() if found == "better"]
    if change in ("worse", "mixed"):
        keep = _keep(audit, rival, "Keep the probabilities of")
        text = "Use bitbayes only to refuse inputs that are unlike the data:"
        return [Advice(text, f"{SET_UP}\n{REFUSE}"), keep, *_warn(audit, lost)]
    text = "Use bitbayes for the probabilities:"
    if change == "same":
        text = "Use bitbayes. Its probabilities are level with the best others:"
    advice = [Advice(text, f"{SET_UP}\n{PREDICT}")]
    if won and not lost:
        advice.append(Advice("Refuse inputs that are unlike the data:", REFUSE))
    elif won:
        kept = join_names([inputs_of(audit, kind) for kind in won])
        advice.append(Advice(f"Refuse by its score if you expect {kept} above all:", REFUSE))
    return [*advice, *_warn(audit, lost)]


def _warn(audit: Audit, lost: dict[str, str]) -> list[Advice]:
    """Name what ranks some inputs better than bitbayes, or better by one measure."""
    advice = []
    for kind, other in lost.items():
        code = ENERGY if other == "energy" else ""
        text = f"If you expect {inputs_of(audit, kind)}, compare with the ranking of {word_of(other)}"
        advice.append(Advice(f"{text}{':' if code else '.'}", code))
    return advice


def _leave(audit: Audit, ours: str) -> list[Advice]:
    """bitbayes brings no gain: say what to do instead, by the reason."""
    reasons = find_reasons(audit)
    advice = [_keep(audit, _best_other(audit, ours), "Keep")]
    if "few" in reasons:
        text = "Give some hundred validation inputs that the network has not seen, and audit again:"
        if audit.sizes["validation"] >= 1000:
            text = "Give validation inputs of which the network gets some wrong, and audit again:"
        advice.append(Advice(text, AGAIN))
    if "shift" in reasons:
        text = "Check that the validation inputs are like the test inputs. If they may be mixed, split again:"
        advice.append(Advice(text, SPLIT))
    if "energy" in reasons:
        advice.append(Advice("Refuse by the energy, which needs nothing but the logits:", ENERGY))
    if "through" in reasons:
        advice.append(Advice(f"{inputs_of(audit, 'unfamiliar').capitalize()} still get through. {RICHER}"))
    won = [
        kind
        for kind in kinds(audit)
        if is_made_up(audit, kind) and against_all(audit, kind, ours)[0] == "better"
    ]
    if won:
        inputs = join_names([inputs_of(audit, kind) for kind in won])
        advice.append(
            Advice(f"If {inputs} can reach your program, refuse them by the score:", f"{SET_UP}\n{REFUSE}")
        )
    return advice


def _best_other(audit: Audit, ours: str) -> str:
    """Return the column to keep on normal inputs: the base, or one that is better than it."""
    better = [
        name
        for name in audit.methods
        if name not in (ours, audit.base) and relation(audit, "normal", name, audit.base) == "better"
    ]
    return best_first(audit, "normal", better)[0] if better else audit.base


def _keep(audit: Audit, name: str, verb: str) -> Advice:
    """Say which probabilities to keep, with the lines for those of the network itself."""
    code = SCALE if name == "temperature" else PLAIN if name == audit.base == "plain" else ""
    title = "the plain network" if name == audit.base == "plain" else word_of(name)
    return Advice(f"{verb} {title}{':' if code else '.'}", code)


def _choose(audit: Audit) -> list[Advice]:
    """Name the predictor to use for each purpose, where one is clearly best."""
    advice = []
    for kind in kinds(audit):
        name, rest = best(audit, kind)
        purpose = "the probabilities" if kind == "normal" else f"refusing {inputs_of(audit, kind)}"
        if not rest:
            advice.append(Advice(f"For {purpose}, use {word_of(name)}."))
        else:
            names = join_names([word_of(each) for each in [name, *rest]])
            advice.append(Advice(f"For {purpose}, {names} are not clearly apart: take the cheapest."))
    return advice
