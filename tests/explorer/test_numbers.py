"""The numbers that come with the package are those that a rebuild gives."""

import pytest
import torch

from bitbayes.explorer.digits import small_lenet
from bitbayes.explorer.numbers import shipped_numbers, train_numbers
from bitbayes.explorer.toys import fit_toy, pack_toy, pack_tuned
from bitbayes.toys import TOY_PROBLEMS, train_toy


@pytest.mark.parametrize("place", range(3))
def test_the_shipped_networks_are_tuned_as_the_library_does_today(place):
    """If this fails, the library chooses other numbers: run scripts/make_explorer_numbers.py."""
    packed = shipped_numbers()["toys"][place]
    again = pack_tuned(packed, fit_toy(packed))
    close(again["tuned"], packed["tuned"])
    for found, shipped in zip(again["levels"], packed["levels"], strict=True):
        assert (found.pop("name"), found.pop("layer")) == (shipped.pop("name"), shipped.pop("layer"))
        close(found, shipped)


def close(found, expected):
    # The search for the settings ends when the loss does not move, at 1e-8: they move by its root.
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.slow
def test_a_rebuild_gives_the_shipped_networks():
    """Other machines add floats in another order, and thousands of steps of training multiply that."""
    again = train_numbers()
    for found, shipped in zip(again["toys"], shipped_numbers()["toys"], strict=True):
        for key in ("points", "labels", "validation", "validationLabels", "head"):
            torch.testing.assert_close(
                torch.tensor(found[key]), torch.tensor(shipped[key]), rtol=1e-2, atol=1e-2
            )
    # The digits are trained in random batches, and end in a network that is as good.
    (found, *_), (shipped, *_) = (each["digits"]["test"] for each in (again, shipped_numbers()))
    assert abs(found["accuracy"] - shipped["accuracy"]) < 0.01


def test_training_reports_what_it_trains_and_keeps_the_threads(monkeypatch):
    monkeypatch.setattr("bitbayes.explorer.digits.pack_digits", lambda network: len(network))
    threads, told = torch.get_num_threads(), []
    numbers = train_numbers(quick=True, report=told.append)
    assert torch.get_num_threads() == threads
    assert told[0] == "Training network 1 of 4: two moons"
    assert told[3:] == ["Training network 4 of 4: digits"]
    toy = TOY_PROBLEMS[0]()
    assert numbers["toys"][0] == pack_toy(toy, train_toy(toy, quick=True))
    assert numbers["digits"] == len(small_lenet())
