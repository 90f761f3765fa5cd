"""The table of held-out data, on two tiny sets: its numbers are those of the public API, and its claims."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes import metrics
from bitbayes.errors import FewPointsWarning
from paper.data.held_out import TableSet, TextSet
from paper.experiments import held_out
from paper.report import Report

ROWS = 120


def tiny_table():
    generator = np.random.RandomState(0)
    labels = np.arange(ROWS) % 3
    size = labels + 0.7 * generator.randn(ROWS)
    shop = np.array(list("abc"), dtype=object)[(labels + (generator.rand(ROWS) < 0.3)) % 3]
    return TableSet("shops", "MIT", {"size": size, "shop": shop}, torch.from_numpy(labels), epochs=5)


def tiny_texts():
    generator = np.random.RandomState(1)
    words = np.array([["apple", "pear"], ["road", "car"]])
    labels = np.arange(ROWS) % 2
    texts = [
        " ".join(generator.choice(words[each if generator.rand() < 0.8 else 1 - each], 3)) for each in labels
    ]
    others = {"Other categories": ["sun", "sun apple"] * 10, "Fortunes": ["moon road pear"] * 20}
    return TextSet("texts", "BSD", texts, torch.from_numpy(labels), others, epochs=5)


@pytest.fixture(autouse=True)
def two_sets(monkeypatch):
    monkeypatch.setattr(held_out, "SETS", {"shops": tiny_table, "texts": tiny_texts})
    monkeypatch.setattr(held_out, "SPLITS", 3)
    monkeypatch.setattr(held_out, "MEMBERS", 2)


TABLE = held_out


def test_the_numbers_are_those_of_the_public_api(values):
    data, seed = tiny_table(), 1
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(ROWS, generator=generator)
    train, validation, test = rows[:60], rows[60:84], rows[84:]
    x, strangers = data.split(train, test, generator)
    y = data.labels
    network = held_out.train_network(held_out.Part(x[train], y[train]), 3, 5, seed=1000 * seed)
    found = values["sets"][0]["splits"][seed]
    assert found["plain"]["nll"] == pytest.approx(metrics.nll(network(x[test]).softmax(1), y[test]), rel=1e-6)
    bayes = bb.Laplace(network).fit([(x[train], y[train])], progress=False)
    with pytest.warns(FewPointsWarning):
        bayes.tune([(x[validation], y[validation])], progress=False)
    scaled = bb.TemperatureScaling(network).fit([(x[validation], y[validation])], progress=False)
    for key, probs in (
        ("temperature", scaled.predict_proba(x[test])),
        ("default", bayes.predict_proba(x[test])),
    ):
        for name in ("accuracy", "nll", "brier", "ece"):
            expected = getattr(metrics, name)(probs, y[test])
            assert found[key][name] == pytest.approx(expected, rel=1e-3, abs=1e-5), (key, name)
        aurc = metrics.aurc(probs.amax(1), probs.argmax(1) == y[test])
        assert found[key]["aurc"] == pytest.approx(aurc, rel=1e-3)
    inside = bayes.score(x[test])
    assert set(strangers) == {"Columns shuffled", "Inputs × 10"}
    for name, others in strangers.items():
        auroc = metrics.auroc(inside, bayes.score(others))
        assert found["default"]["strangers"][name]["auroc"] == pytest.approx(auroc, abs=2e-3)
        with torch.no_grad():
            energy = metrics.auroc(network(x[test]).logsumexp(1), network(others).logsumexp(1))
        assert found["plain"]["strangers"][name]["auroc"] == pytest.approx(energy, abs=2e-3)


def test_every_method_and_set_is_there(values):
    assert [(each["name"], each["rows"], each["classes"]) for each in values["sets"]] == [
        ("shops", ROWS, 3),
        ("texts", ROWS, 2),
    ]
    for each in values["sets"]:
        assert len(each["splits"]) == 3
        for split in each["splits"]:
            assert set(split) | set(values["not_run"]) == set(held_out.TITLES)


def test_the_files_are_written_and_can_be_drawn_again(values, options):
    report = Report("held-out", "sets", options)
    held_out.show(report.write_numbers(values), report)
    written = {path.name: path.read_text() for path in report.written if path.suffix == ".md"}
    assert set(written) == {"sets.md", "sets-calibration.md", "sets-strangers.md"}
    assert "python -m paper held-out" in written["sets.md"] and "--train" not in written["sets.md"]
    assert written["sets.md"].count("Behind in") == 3 and "nan" not in "".join(written.values())
    assert "| shops | Inputs × 10 |" in written["sets-strangers.md"]
    assert (options.output / "held-out/sets.png").stat().st_size > 5_000
    again = Report("held-out", "sets", replace(options, redraw=True))
    held_out.show(again.read_numbers(), again)
    assert written == {path.name: path.read_text() for path in again.written if path.suffix == ".md"}


def test_the_tables_that_were_kept_are_those_of_their_numbers(tmp_path, options):
    kept = Path(__file__).parents[3] / "results/held-out"
    (tmp_path / "held-out").mkdir()
    shutil.copy(kept / "sets.json", tmp_path / "held-out")
    report = Report("held-out", "sets", replace(options, output=tmp_path, redraw=True))
    held_out.show(report.read_numbers(), report)
    tables = [path for path in report.written if path.suffix == ".md"]
    assert len(tables) == 3
    for path in tables:
        assert path.read_text() == (kept / path.name).read_text()


def test_the_floor_of_the_ece_is_that_of_labels_from_the_probabilities():
    probs = torch.tensor([[0.7, 0.3]]).repeat(1000, 1)
    # One bin: |share − 0.7| of 1,000 draws, whose mean is √(2/π · 0.21 / 1,000).
    assert held_out.ece_floor(probs) == pytest.approx(math.sqrt(2 / math.pi * 0.21 / 1000), rel=0.6)
    assert held_out.ece_floor(torch.eye(2).repeat(50, 1)) == 0


# ---- the claims, on made-up numbers


def split(nll, auroc, fpr95):
    def method(number):
        strangers = {name: {"auroc": auroc[number], "fpr95": fpr95[number]} for name in ("Near", "Far")}
        return {"nll": nll[number], "strangers": strangers}

    return {"plain": method(0), "temperature": method(0), "default": method(1)}


def made_up(*pairs):
    """Two sets with splits that have these numbers of the rival and of the default."""
    splits = [split(*pair) for pair in pairs]
    return {"sets": [{"name": name, "splits": splits} for name in ("first", "second")]}


GOOD = [((0.5, 0.4 + 0.001 * i), (0.8, 0.9 + 0.001 * i), (0.5, 0.2 + 0.001 * i)) for i in range(3)]
BAD = [tuple(numbers[::-1] for numbers in pair) for pair in GOOD]


@pytest.mark.parametrize("pairs, for_it, against", [(GOOD, 2, 0), (BAD, 0, 2)])
def test_a_clear_difference_is_shown_for_or_against(pairs, for_it, against):
    claims = held_out.judge_claims(made_up(*pairs))
    assert [len(claim.cells) for claim in claims] == [2, 4, 4]
    for claim in claims:
        times = len(claim.cells) // 2
        assert claim.count(claim.sign) == for_it * times and claim.count(-claim.sign) == against * times
        assert len(claim.misses()) == against * times
    first = claims[0].cells[0].result
    ratios = [math.log(pair[0][1] / pair[0][0]) for pair in pairs]
    assert first.mean == pytest.approx(sum(ratios) / 3)


def test_p_values_are_corrected_for_the_number_of_comparisons():
    likelihood, auroc, _ = held_out.judge_claims(made_up(*GOOD))
    for claim in (likelihood, auroc):
        assert claim.cells[0].p == pytest.approx(len(claim.cells) * claim.cells[0].result.p)


def test_no_difference_is_neither_a_miss_nor_shown():
    same = [((0.5, 0.5), (0.8, 0.8), (0.2, 0.2))] * 3
    for claim in held_out.judge_claims(made_up(*same)):
        assert claim.misses() == [] and claim.count(+1) == claim.count(-1) == 0 and claim.across == 1.0


def test_the_network_learns():
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    part = held_out.Part(x, (x[:, 0] > 0).long())
    network = held_out.train_network(part, 2, 20, seed=0)
    assert isinstance(network, nn.Sequential) and not network.training
    assert metrics.accuracy(network(x).softmax(1).detach(), part.labels) > 0.95
