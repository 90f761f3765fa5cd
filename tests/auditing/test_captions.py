from dataclasses import replace

from bitbayes.auditing.captions import (
    caption_limits,
    caption_promise,
    caption_rays,
    caption_reliability,
    caption_selective,
    caption_trade_off,
    describe_cost,
)
from bitbayes.auditing.findings import KEPT_SHARES, Audit, Promise


def test_rays_say_where_each_line_goes(audit: Audit) -> None:
    assert audit.ray is not None
    mean = {
        "plain": [0.9, 1.0],
        "temperature": [0.8, 0.801],
        "energy": [0.9, 1.0],
        "bitbayes": [0.98, 0.25],
    }
    caption = caption_rays(replace(audit, ray=replace(audit.ray, mean=mean)))
    assert caption == (
        "Mean confidence from δ = 1 to δ = 10,000: Plain rises from 90.0 to 100.0%; Temperature hardly "
        "moves, from 80.0 to 80.1%; bitbayes falls from 98.0 to 25.0%. "
        "At δ = 10,000 bitbayes is as unsure as a blind guess (25.0%)."
    )


def test_without_the_residual_rays_end_above_a_blind_guess(audit: Audit) -> None:
    assert caption_rays(audit).endswith("A blind guess is 25.0%; bitbayes ends 55.0 points above it.")
    assert audit.ray is not None
    ray = replace(audit.ray, mean=audit.ray.mean | {"bitbayes": [0.9, 0.005]})  # five times a guess
    caption = caption_rays(replace(audit, classes=1000, ray=ray))
    assert caption.endswith("A blind guess is 0.1%; bitbayes ends 0.4 points above it.")


def test_a_certificate_is_rounded_up(audit: Audit) -> None:
    bounds = [replace(each, alpha=33.2, certified=0.75042) for each in audit.infinity]
    assert "beyond δ = 34 it never exceeds 75.1%" in caption_limits(replace(audit, infinity=bounds))


def test_limits_and_certificate(audit: Audit) -> None:
    assert caption_limits(audit) == (
        "Limit: as δ grows without end, the confidence of bitbayes tends to 62.5% on average over 200 test "
        "inputs, and to 72.5% for the surest of them. Certificate: beyond δ = 33 it never "
        "exceeds 75.0% for "
        "any of them. Both are computed, not measured at a large δ."
    )
    guesses = [replace(each, mean=0.25, largest=0.25, alpha=None) for each in audit.infinity]
    assert caption_limits(replace(audit, infinity=guesses)) == (
        "Limit: as δ grows without end, the confidence of bitbayes tends to 25.0%, a blind "
        "guess, for each of "
        "200 test inputs. It is computed exactly, not measured at a large δ."
    )
    assert caption_limits(replace(audit, infinity=[])) == ""
    empty = [replace(each, certified=1.0) for each in audit.infinity]
    assert caption_limits(replace(audit, infinity=empty)).endswith("No useful certificate for this model.")


def test_reliability_says_what_is_claimed_and_what_is_true(audit: Audit) -> None:
    caption = caption_reliability(audit)
    assert caption.startswith(
        "Plain: confidence 99.0%, accuracy 90.0%, ECE 9.0%. Overconfident by 9.0 points. Temperature: "
    )
    assert caption.endswith("bitbayes: confidence 90.0%, accuracy 89.5%, ECE 1.0%. No clear miscalibration.")
    assert "Energy" not in caption  # it has the plain network's probabilities
    unsure = audit.test | {"bitbayes": audit.details["paper"].test}
    assert caption_reliability(replace(audit, test=unsure)).endswith("Underconfident by 19.0 points.")


def test_handing_the_least_sure_to_a_person_is_said_with_its_numbers(audit: Audit) -> None:
    assert caption_selective(audit) == (
        "Hand the least sure 5% to a person: errors among the others fall from 6.0% to 5.5% (Plain: from "
        "6.0% to 5.5%)."
    )
    level = audit.selective | {"bitbayes": [0.06] * len(KEPT_SHARES)}
    assert "errors among the others stay at 6.0% (" in caption_selective(replace(audit, selective=level))
    alone = caption_selective(replace(audit, ours=None))
    assert alone.endswith("fall from 6.0% to 5.5%.")


def test_a_promise_names_its_data(audit: Audit) -> None:
    assert audit.promise is not None
    assert caption_promise(audit.promise) == (
        "Promised, with a probability of 95%: of the inputs with a confidence of at least 75% at most 5% are "
        "answered wrong. The threshold was found on the 400 test inputs of this audit, which tuned nothing: "
        "90.0% of them have that confidence, and 6 of these 360 are wrong. It holds for inputs that are "
        "drawn as they were."
    )
    none = Promise(0.01, 0.95, 400, reason="too few points")
    assert caption_promise(none) == (
        "At most 1% wrong answers cannot be promised on the 400 test inputs of this audit: too few points."
    )


def test_the_trade_off_says_who_is_better_on_both_axes(audit: Audit) -> None:
    caption = caption_trade_off(audit)
    assert "Plain: calibration error 9.0%, 40.0% get through" in caption
    assert caption.endswith(" bitbayes is at least as good as Plain, Temperature and Energy on both axes.")
    swapped = replace(
        audit, test=audit.test | {"plain": audit.test["bitbayes"], "bitbayes": audit.test["plain"]}
    )
    assert "at least as good as Temperature" not in caption_trade_off(swapped)


def test_costs_are_compared_only_with_a_pass_that_takes_long_enough(audit: Audit) -> None:
    assert describe_cost(audit.cost, 5000) == (
        "Fitting takes 2.2 s (1.1 times a forward pass over the training data), and tuning 4.4 s (2.2 times "
        "one). A prediction takes 0.5 ms an input, 2.0 times a plain one. Loading data is not counted. Short "
        "steps are medians of several runs."
    )
    short = describe_cost(replace(audit.cost, fit_seconds=0.2, fit=200.0), 4)
    assert "200" not in short
    assert "too short to compare with" in short
