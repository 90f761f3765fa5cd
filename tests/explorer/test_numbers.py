"""The numbers that come with the package are those that a rebuild gives."""

import pytest
import torch

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
    for found, shipped in zip(train_numbers()["toys"], shipped_numbers()["toys"], strict=True):
        for key in ("points", "labels", "validation", "validationLabels", "head"):
            torch.testing.assert_close(
                torch.tensor(found[key]), torch.tensor(shipped[key]), rtol=1e-2, atol=1e-2
            )


def test_training_reports_what_it_trains_and_keeps_the_threads(monkeypatch):
    threads, told = torch.get_num_threads(), []
    numbers = train_numbers(quick=True, report=told.append)
    assert torch.get_num_threads() == threads
    assert told[0] == "Training network 1 of 3: two moons" and len(told) == 3
    toy = TOY_PROBLEMS[0]()
    assert numbers["toys"][0] == pack_toy(toy, train_toy(toy, quick=True))
