"""What is fitted for a network, by the data that are given. The scores are tested with the audit."""

import pytest
import torch
from torch import nn

from bitbayes.auditing.network_columns import count_errors, network_columns
from bitbayes.auditing.predictions import Rated
from bitbayes.auditing.progress import say_nothing
from bitbayes.auditing.reading import LabelledSet


@pytest.mark.parametrize(
    "names, columns",
    [
        ((), ["net", "energy"]),
        (("train",), ["net", "energy"]),
        (("validation",), ["net", "temperature", "energy"]),
        (("train", "validation"), ["net", "temperature", "energy", "bitbayes"]),
    ],
)
def test_columns_by_the_data_that_are_given(
    names: tuple[str, ...], columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitbayes.auditing.costs.ENOUGH_SECONDS", 0.01)
    x, net = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)), nn.Linear(2, 3)
    sets = {name: LabelledSet(name, (x, torch.arange(60) % 3), net) for name in names}
    notes: list[str] = []
    found = network_columns("net", net, sets, x, say_nothing, notes)
    assert list(found.methods) == list(found.ranked_by) == columns
    assert (found.bayes is None) == (found.cost is None) == ("bitbayes" not in columns)
    assert ("validation" in found.errors) == ("temperature" in columns)
    assert set(found.validation_nll) == (set(columns) if "validation" in names else set())


def test_errors_are_wrong_answers() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])
    assert count_errors(Rated(probs, probs.amax(1)), torch.tensor([0, 0, 1])) == 2
