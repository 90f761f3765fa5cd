"""The page of promises: its cells follow from the numbers of `results/shift`."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from bitbayes.errors import FileError
from paper.experiments import promises, shift
from paper.report import Report
from paper.session import Session

ROOT = Path(__file__).parents[3]
KEPT = json.loads((ROOT / "results/promises/images.json").read_text("utf-8"))


def source(name):
    return json.loads((ROOT / f"results/shift/{name}-40-epochs.json").read_text("utf-8"))


@pytest.mark.parametrize("numbers", [[1.0, 2.0], [0.3, 0.1, 0.5, 0.2, 0.4]])
def test_the_interval_is_students(numbers):
    low, high = stats.t.interval(0.95, len(numbers) - 1, statistics.fmean(numbers), stats.sem(numbers))
    assert promises.half_width(numbers) == pytest.approx((high - low) / 2, rel=1e-4)


def test_a_single_training_decides_nothing():
    assert promises.half_width([1.0]) is None
    assert promises.verdict([5.0]) == "level"


@pytest.mark.parametrize("name", promises.SETS)
def test_every_cell_that_is_kept_follows_from_the_kept_numbers(name):
    values = source(name)
    for promise in promises.PROMISES:
        cell = KEPT["cells"][promise.title][name]
        assert cell["ours"] == pytest.approx(promise.of(values, "default"), rel=1e-5)
        better = max if promise.sign > 0 else min
        rivals = [promise.of(values, key) for key in promises.SAME_COST if key in values["methods"]]
        if promise.detectors is not None:
            names = promise.detectors(values)
            rivals += [
                [100 * sum(each[n][t] for n in names) / len(names) for t in range(5)]
                for each in values["detectors"].values()
                if set(names) <= set(each)
            ]
        best = better(map(statistics.fmean, rivals))
        assert statistics.fmean(cell["theirs"]) == pytest.approx(best, rel=1e-5)
        gain = promise.sign * (statistics.fmean(cell["ours"]) - best)
        assert cell["gain"] == pytest.approx(gain, rel=1e-3, abs=1e-5)
        behind = cell["gain"] < -cell["gain_interval"]
        assert (cell["verdict"] == "behind") == behind


def test_the_page_shows_each_cell_and_names_each_miss():
    page = (ROOT / "results/promises/images.md").read_text("utf-8")
    misses = 0
    for promise in promises.PROMISES:
        (row,) = [
            line for line in page.splitlines() if line.startswith(f"| {promise.title}") and "<br>" in line
        ]
        for (name, title), text in zip(KEPT["sets"].items(), row.split(" | ")[1:], strict=True):
            cell = KEPT["cells"][promise.title][name]
            assert text.startswith(f"{statistics.fmean(cell['ours']):.{promise.digits}f} ")
            rival = promises._in_a_sentence(cell["rival"])
            assert f"{rival} {statistics.fmean(cell['theirs']):.{promise.digits}f}" in text
            lower = promise.title[0].lower() + promise.title[1:]
            missed = f"- **{title}, {lower}**" in page
            assert missed == (cell["verdict"] == "behind")
            misses += missed
    assert f"of the same cost in {misses}, level" in page


@pytest.mark.parametrize("title", KEPT["parts"])
def test_the_parts_that_are_kept_follow_from_the_kept_numbers(title):
    folder = ROOT / "results"
    sources = {
        json.loads(path.read_text("utf-8"))["problem"]: (json.loads(path.read_text("utf-8")), "_few", "far")
        for path in folder.glob("shift/*.json")
    }
    tables = json.loads((folder / "drift/tables.json").read_text("utf-8"))["tables"]
    sources |= {table["problem"]: (table, "", "near") for table in tables.values()}
    values, few, kind = sources[title]
    page = (ROOT / "results/promises/images.md").read_text("utf-8")
    for key, found in KEPT["parts"][title]["methods"].items():
        runs = values["methods"][key]
        assert found["test"] == pytest.approx([run[f"test{few}"]["nll"] for run in runs], rel=1e-5)
        assert found["shifted"] == pytest.approx([run[f"corrupted{few}"]["nll"] for run in runs], rel=1e-5)
        names = values[kind]
        auroc = [100 * statistics.fmean(run["sets"][name]["auroc"] for name in names) for run in runs]
        assert found["auroc"] == pytest.approx(auroc, rel=1e-5)
        assert f"{statistics.fmean(found['shifted']):.4f}" in page


@pytest.mark.parametrize("title", KEPT["parts"])
def test_what_the_posterior_adds_is_said_first(title):
    page = (ROOT / "results/promises/images.md").read_text("utf-8")
    methods, overlap = KEPT["parts"][title]["methods"], KEPT["parts"][title]["overlap"]
    gains = [
        b - a for a, b in zip(methods["default"]["shifted"], methods["distances"]["shifted"], strict=True)
    ]
    width = stats.t.ppf(0.975, len(gains) - 1) * statistics.stdev(gains) * (1 / len(gains) + overlap) ** 0.5
    nothing = abs(statistics.fmean(gains)) <= width
    assert (f"- **{title}: nothing that shows.**" in page) == nothing
    assert page.index("## What the posterior adds") < page.index("## One network")


def test_the_deviations_over_splits_are_apart_from_those_over_trainings():
    splits = source("cifar10")["splits"]["default"]
    over_trainings, over_splits = KEPT["splits"]["cifar10"]["default"]["nll"]
    rows = [[one["nll"] for one in each] for each in splits]
    assert over_trainings == pytest.approx(statistics.stdev(map(statistics.fmean, rows)), rel=1e-4)
    assert over_splits == pytest.approx(statistics.fmean(map(statistics.stdev, rows)), rel=1e-4)


def test_a_tiny_problem(session, options, monkeypatch):
    report = Report("shift", "tiny", options)
    report.write_numbers(shift.measure(session))
    monkeypatch.setattr(promises, "SETS", ("tiny", "mnist"))
    values = promises.measure(session)
    assert list(values["sets"]) == ["tiny"]
    page = Report("promises", "tiny", options)
    promises.show(page.write_numbers(values), page)
    assert "## Where it is behind" in (options.output / "promises/tiny.md").read_text("utf-8")


def test_without_numbers_an_error_names_the_command(options, tmp_path):
    with pytest.raises(FileError, match="python -m paper shift"):
        promises.measure(Session(replace(options, output=tmp_path / "none")))
