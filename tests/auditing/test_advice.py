"""What to do, for each way in which an audit can come out."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from auditing.columns import audit_of
from auditing.test_verdict import CASES, THREE, outcome
from bitbayes.auditing.advice import ENERGY, PLAIN, REFUSE, SCALE, SPLIT, advise

FIRST = {
    "better on all": "Use bitbayes for the probabilities:",
    "better on outliers of the user": "Use bitbayes. Its probabilities are level with the best others:",
    "better calibrated alone": "Use bitbayes for the probabilities:",
    "better than plain, but not than temperature scaling and energy": "Keep temperature scaling:",
    "the network is calibrated already": "Keep the plain network:",
    "worse everywhere": "Keep temperature scaling:",
    "temperature scaling got worse, too": "Keep the plain network:",
    "log loss and ECE disagree": "Use bitbayes only to refuse inputs that are unlike the data:",
}


@pytest.mark.parametrize("case", FIRST)
def test_the_first_advice_follows_from_the_verdict(case: str) -> None:
    assert advise(CASES[case][0])[0].text == FIRST[case]


def codes(case: str) -> list[str]:
    return [each.code for each in advise(CASES[case][0])]


def test_the_lines_to_copy_are_those_of_the_gain() -> None:
    use, refuse = codes("better on all")
    assert use.endswith("\nprobs = bayes.predict_proba(x)") and refuse == REFUSE
    (use,) = codes("better calibrated alone")
    assert "predict_proba" in use and "threshold" not in use
    refuse, keep = codes("log loss and ECE disagree")
    assert "threshold" in refuse and "predict_proba" not in refuse and keep == SCALE
    use, compare = codes("the measures of refusing disagree")
    assert "predict_proba" in use and compare == ENERGY  # which stops more of them
    assert PLAIN in codes("the network is calibrated already")


def test_each_reason_has_its_advice() -> None:
    def texts(case: str) -> str:
        return " ".join(each.text for each in advise(CASES[case][0]))

    assert "Give some hundred validation inputs" in texts("few validation points")
    assert "of which the network gets some wrong" in texts("many validation points without an error")
    assert "Unfamiliar inputs still get through. Train it with examples" in texts(
        "strangers still get through"
    )
    assert SPLIT in codes("temperature scaling got worse, too")
    assert ENERGY in codes("better than plain, but not than temperature scaling and energy")
    assert "If noise inputs and far-away inputs can reach your program" in texts(
        "better on made-up inputs alone"
    )


def test_a_gain_on_one_kind_and_a_loss_on_another_are_weighed_by_the_user() -> None:
    audit = outcome(unfamiliar=(0.9, 0.2), far=(0.05, 1.0))
    texts = [each.text for each in advise(audit)]
    assert texts[1] == "Refuse by its score if you expect unfamiliar inputs above all:"
    assert texts[2] == "If you expect far-away inputs, compare with the ranking of plain."


def test_where_nothing_tells_them_apart_another_network_is_advised() -> None:
    columns = {"plain": (0.3, 0.03, 0.9), "bitbayes": (0.3, 0.03, 0.9)}
    blind = audit_of(columns, unfamiliar={"plain": (0.5, 0.9), "bitbayes": (0.55, 0.9)})
    assert any("Nothing here tells unfamiliar inputs" in each.text for each in advise(blind))
    assert not any("Nothing here tells" in each.text for each in advise(outcome()))


def test_without_outliers_of_the_user_they_are_asked_for() -> None:
    assert not any("Audit again" in each.text for each in advise(outcome()))
    assert advise(outcome(given=False))[-1].text.startswith("Audit again with inputs of your own")
    assert advise(outcome(unfamiliar=None))[-1].text.startswith("Audit again")


def test_without_bitbayes_a_predictor_is_named_for_each_purpose() -> None:
    near = dict.fromkeys(THREE, (0.8, 0.4))
    assert [each.text for each in advise(audit_of(THREE, unfamiliar=near))] == [
        "For the probabilities, use ensemble.",
        "For refusing unfamiliar inputs, ensemble, laplace and plain are not clearly apart: take the "
        "cheapest.",
    ]
    alone = audit_of({"forest": (0.2, 0.01, 0.9)}, unfamiliar={"forest": (0.8, 0.4)})
    assert advise(alone) == []


def test_the_lines_for_energy_and_for_splitting_run() -> None:
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    data = torch.utils.data.TensorDataset(x, y)
    scope = {"model": nn.Linear(3, 2), "val_loader": [(x, y)], "x": x, "val_set": data, "test_set": data}
    exec(ENERGY, scope)
    assert scope["accepted"].float().mean() == pytest.approx(0.95, abs=0.026)  # type: ignore[attr-defined]
    exec(SPLIT, scope)
    assert len(scope["val_set"]) == len(scope["test_set"]) == 40  # type: ignore[arg-type]


def test_the_base_may_have_another_name() -> None:
    audit = outcome()
    columns = {"my network" if name == "plain" else name: each for name, each in audit.test.items()}
    other = audit_of({name: (0.3, 0.01, 0.9) for name in columns if name != "temperature"})
    assert advise(replace(other, base="my network"))[0].text == "Keep my network."
