"""The captions of the report's pictures, written from the numbers that they show."""

import math

from bitbayes.auditing.findings import KEPT_SHARES, USUAL_SHARE, Audit, Cost, Promise
from bitbayes.auditing.verdict import NOTICEABLE, describe_calibration, write_rates
from bitbayes.auditing.words import join_names, percent, title_of
from bitbayes.rays import round_up

USELESS_CERTIFICATE = 0.99  # a certified confidence of this or more
# In seconds. Compared with a shorter forward pass, the fixed costs of a step would decide the ratio.
SHORTEST_PASS = 0.05


def caption_rays(audit: Audit) -> str:
    """Say how the confidence of each method changes from the data to the largest δ."""
    ray = audit.ray
    assert ray is not None
    guess = 1 / audit.classes
    parts = [
        f"{title_of(method)} {_movement(ray.mean[method][0], ray.mean[method][-1])}"
        for method in audit.own_probabilities
    ]
    start = f"Mean confidence from δ = 1 to δ = {ray.delta[-1]:,.0f}: {'; '.join(parts)}."
    if audit.ours is None:
        return f"{start} A blind guess is {percent(guess)}%."
    end = ray.mean[audit.ours][-1]
    verdict = (
        f"At δ = {ray.delta[-1]:,.0f} bitbayes is as unsure as a blind guess ({percent(guess)}%)."
        if end - guess <= min(NOTICEABLE, guess / 2)  # for many classes half a point is much
        else f"A blind guess is {percent(guess)}%; bitbayes ends {percent(end - guess)} points above it."
    )
    return f"{start} {verdict}"


def caption_limits(audit: Audit) -> str:
    """Say what the confidence of bitbayes tends to, and what is certified about it."""
    if not audit.infinity:
        return ""
    size = sum(limits.size for limits in audit.infinity)
    mean = sum(limits.mean * limits.size for limits in audit.infinity) / size
    largest = max(limits.largest for limits in audit.infinity)
    guess = 1 / audit.classes
    if abs(largest - guess) < 1e-6:
        limit = (
            f"Limit: as δ grows without end, the confidence of bitbayes tends to {percent(guess)}%, a blind "
            f"guess, for each of {size:,} test inputs."
        )
    else:
        limit = (
            f"Limit: as δ grows without end, the confidence of bitbayes tends to {percent(mean)}% on "
            f"average over {size:,} test inputs, and to {percent(largest)}% for the surest of them."
        )
    found = certificate(audit)
    if found is None:
        none = " No useful certificate for this model." if _all_certified(audit) else ""
        return f"{limit} It is computed exactly, not measured at a large δ.{none}"
    alpha, certified = found
    return (
        f"{limit} Certificate: beyond δ = {write_scale(alpha)} it never exceeds "
        f"{percent(round_up(certified, 0.001))}% for any of them. Both are computed, not measured at a "
        "large δ."
    )


def certificate(audit: Audit) -> tuple[float, float] | None:
    """Return α and a confidence that no test input exceeds for δ ≥ α.

    None unless all are certified, or if that confidence says nothing.
    """
    if not _all_certified(audit):
        return None
    alpha = max(each.alpha or 0.0 for each in audit.infinity)
    certified = max(each.certified or 0.0 for each in audit.infinity)
    return None if round_up(certified, 0.001) >= USELESS_CERTIFICATE else (alpha, certified)


def _all_certified(audit: Audit) -> bool:
    certified = [each.alpha is not None and each.certified is not None for each in audit.infinity]
    return bool(certified) and all(certified)


def caption_reliability(audit: Audit) -> str:
    """Say for each method how far confidence is from accuracy."""
    return " ".join(
        f"{title_of(method)}: {describe_rates(audit, method)}" for method in audit.own_probabilities
    )


def describe_rates(audit: Audit, method: str) -> str:
    """Return confidence, accuracy and ECE of a method, and whether it is calibrated."""
    scores = audit.test[method]
    rates = write_rates(scores)
    return (
        f"{rates[0].lower()}{rates[1:]}, ECE {percent(scores.ece)}%. "
        f"{describe_calibration(scores, audit.sizes['test'])}"
    )


def caption_selective(audit: Audit) -> str:
    """Say what handing the least sure inputs to a person would save."""
    method = audit.ours or audit.base
    before, after = _errors_at(audit, method)
    verb = "stay" if after == before else "fall" if float(after) < float(before) else "rise"
    change = f"at {before}%" if verb == "stay" else f"from {before}% to {after}%"
    base = " to ".join(f"{rate}%" for rate in _errors_at(audit, audit.base))
    other = "" if method == audit.base else f" ({title_of(audit.base)}: from {base})"
    return f"Hand the least sure 5% to a person: errors among the others {verb} {change}{other}."


def _errors_at(audit: Audit, method: str) -> tuple[str, str]:
    """Return the error rate among all test inputs, and without the least sure 5%."""
    risks = audit.selective[method]
    return percent(risks[-1]), percent(risks[KEPT_SHARES.index(USUAL_SHARE)])


def caption_promise(promise: Promise) -> str:
    """Say what is promised of a threshold, and on which data."""
    risk, level = f"{100 * promise.risk:g}%", f"{100 * promise.level:g}%"
    data = f"the {promise.points:,} test inputs of this audit"
    if promise.threshold is None:
        return f"At most {risk} wrong answers cannot be promised on {data}: {promise.reason}."
    share, accepted = percent(promise.accepted / promise.points), f"{promise.accepted:,}"
    return (
        f"Promised, with a probability of {level}: of the inputs with a confidence of at least "
        f"{write_confidence(promise.threshold)} at most {risk} are answered wrong. The threshold was found "
        f"on {data}, which tuned nothing: {share}% of them have that confidence, and {promise.errors:,} of "
        f"these {accepted} are wrong. It holds for inputs that are drawn as they were."
    )


def write_confidence(confidence: float) -> str:
    """Write a confidence in per cent, rounded up, with as many digits as tell it from 100%.

    >>> write_confidence(0.5), write_confidence(0.83712), write_confidence(0.999951)
    ('50%', '83.8%', '99.996%')
    """
    digits = 1 if confidence < 0.99 else 3
    return f"{100 * round_up(confidence, 10.0 ** -(digits + 2)):.{digits}f}".rstrip("0").rstrip(".") + "%"


def caption_trade_off(audit: Audit) -> str:
    """Compare the methods by calibration on the test data and by how many unfamiliar inputs get through."""
    group = audit.groups["unfamiliar"]
    assert audit.ours is not None
    points = {m: (audit.test[m].ece, group.scores[m].fpr95) for m in audit.methods}
    listed = "; ".join(
        f"{title_of(m)}: calibration error {percent(ece)}%, {percent(fpr95)}% get through"
        for m, (ece, fpr95) in points.items()
    )
    ours = points[audit.ours]
    beaten = [
        title_of(m)
        for m, (ece, fpr95) in points.items()
        if m != audit.ours and ece >= ours[0] and fpr95 >= ours[1]
    ]
    better = [
        title_of(m)
        for m, (ece, fpr95) in points.items()
        if m != audit.ours and ece <= ours[0] and fpr95 <= ours[1]
    ]
    verdict = ""
    if beaten:
        verdict = f" bitbayes is at least as good as {join_names(beaten)} on both axes."
    if better:
        verb = "is" if len(better) == 1 else "are"
        verdict += f" {join_names(better)} {verb} at least as good as bitbayes on both axes."
    return f"{listed}.{verdict}"


def describe_cost(cost: Cost, inputs: int) -> str:
    """Say how long the steps took, and how that compares with forward passes of the plain network.

    Args:
        cost: what was measured.
        inputs: the number of training inputs.
    """
    if inputs * cost.forward_milliseconds / 1000 >= SHORTEST_PASS:
        fit = f" ({_times(cost.fit)} a forward pass over the training data)"
        tune, passes = f" ({_times(cost.tune)} one)", ""
    else:
        fit = tune = ""
        passes = " A forward pass over the training data is too short to compare with."
    return (
        f"Fitting takes {_seconds(cost.fit_seconds)}{fit}, and tuning {_seconds(cost.tune_seconds)}{tune}."
        f"{passes} A prediction takes {cost.predict_milliseconds:.2g} ms an input, {_times(cost.predict)} "
        "a plain one. Loading data is not counted. Short steps are medians of several runs."
    )


def _seconds(seconds: float) -> str:
    return (
        "less than 0.01 s" if seconds < 0.01 else f"{seconds:.2g} s" if seconds < 100 else f"{seconds:,.0f} s"
    )


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 10 else f"{ratio:.0f} times"


def write_scale(delta: float) -> str:
    """Write a factor δ, rounded up: as a plain number while that is short.

    >>> write_scale(0.25), write_scale(1234.2), write_scale(3.2e9), write_scale(3.21e9)
    ('0.25', '1,235', '3.2·10⁹', '3.3·10⁹')
    """
    if delta < 10:
        return f"{round_up(delta, 0.01):.3g}"
    if delta < 1e6:
        return f"{round_up(delta, 1):,.0f}"
    delta = round_up(delta, 10.0 ** (math.floor(math.log10(delta)) - 1))
    mantissa, exponent = f"{delta:.1e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def _movement(start: float, end: float) -> str:
    """Say where a confidence goes. Half a point is hardly a movement.

    >>> _movement(0.881, 0.877)
    'hardly moves, from 88.1 to 87.7%'
    >>> _movement(0.98, 0.1), _movement(0.9, 1.0)
    ('falls from 98.0 to 10.0%', 'rises from 90.0 to 100.0%')
    """
    word = "rises" if end > start else "falls"
    if abs(end - start) <= NOTICEABLE:
        word = "hardly moves,"
    return f"{word} from {percent(start)} to {percent(end)}%"
