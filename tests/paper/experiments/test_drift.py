"""Tables whose columns drift: what each drift does, the numbers of one split, and the page."""

import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bitbayes as bb
from bitbayes import metrics
from paper.data.held_out import TableSet
from paper.experiments import drift, held_out
from paper.report import Report

KEPT = Path(__file__).parents[3] / "results/drift"
ROWS = 150


def tiny_table():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(ROWS) % 2
    rows = torch.randn(ROWS, 6, generator=generator) + labels[:, None]
    columns = {f"sensor {place}": column.numpy() for place, column in enumerate(rows.T)}
    return TableSet("Sensors", "MIT", columns, labels, epochs=5)


@pytest.fixture(autouse=True)
def one_table(monkeypatch):
    monkeypatch.setattr(drift, "TABLES", {"sensors": tiny_table})
    monkeypatch.setattr(drift, "MEMBERS", 2)


TABLE = drift


@pytest.fixture
def rows():
    return torch.randn(400, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("severity", drift.SEVERITIES)
def test_each_drift_does_what_it_says(rows, severity):
    moved, gained, noisy, dead = drift.drifted(rows, severity, seed=3)
    # A third of ten columns: three.
    steps = (moved - rows).mean(0)
    assert int((steps != 0).sum()) == 3
    torch.testing.assert_close(steps[steps != 0].abs(), torch.full((3,), severity / 2, dtype=torch.float64))
    gains = (gained / rows).median(0).values
    assert int((gains != 1).sum()) == 3
    torch.testing.assert_close(gains[gains != 1], torch.full((3,), 1 + severity / 2, dtype=torch.float64))
    torch.testing.assert_close((noisy - rows).std(), torch.tensor(0.4 * severity).double(), rtol=0.05, atol=0)
    assert int((dead == 0).all(0).sum()) == round(1.5 * severity)
    torch.testing.assert_close(dead[dead != 0], rows[dead != 0])


def test_the_same_columns_drift_further_with_severity(rows):
    mild, strong = (list(drift.drifted(rows, severity, seed=3)) for severity in (1, 4))
    torch.testing.assert_close(4 * (mild[0] - rows), strong[0] - rows)
    torch.testing.assert_close(4 * (mild[2] - rows), strong[2] - rows)
    assert bool(((mild[3] == 0) <= (strong[3] == 0)).all())


def test_the_numbers_are_those_of_the_public_api(values):
    data, seed = tiny_table(), 1
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(ROWS, generator=generator)
    train, validation, test = order[:75], order[75:105], order[105:]
    x, strangers = data.split(train, test, generator)
    y = data.labels
    network = held_out.train_network(held_out.Part(x[train], y[train]), 2, 5, seed=1000 * seed)
    found = values["tables"]["sensors"]["methods"]
    bayes = bb.Laplace(network).fit([(x[train], y[train])], progress=False)
    with drift.ignore_edge_warnings():
        bayes.tune([(x[validation], y[validation])], progress=False)
    for severity in drift.SEVERITIES:
        every = torch.cat(list(drift.drifted(x[test], severity, seed)))
        with torch.no_grad():
            plain = network(every).softmax(1)
        labels = y[test].repeat(4)
        for key, probs in (("plain", plain), ("default", bayes.predict_proba(every))):
            measured = found[key][seed]["severities"][str(severity)]
            for name in ("accuracy", "nll", "ece"):
                expected = getattr(metrics, name)(probs, labels)
                assert measured[name] == pytest.approx(expected, rel=1e-3, abs=1e-5), (key, name)
    auroc = metrics.auroc(bayes.score(x[test]), bayes.score(strangers["Columns shuffled"]))
    assert found["default"][seed]["sets"]["Columns shuffled"]["auroc"] == pytest.approx(auroc, abs=2e-3)


def test_the_files_are_written_and_can_be_drawn_again(values, options):
    report = Report("drift", "tables", options)
    drift.show(report.write_numbers(values), report)
    page = (options.output / "drift/tables.md").read_text("utf-8")
    assert "## Sensors" in page and "nan" not in page and "--train" not in page.splitlines()[2]
    assert (options.output / "drift/tables.png").stat().st_size > 5_000
    again = Report("drift", "tables", replace(options, redraw=True))
    drift.show(again.read_numbers(), again)
    assert page == (options.output / "drift/tables.md").read_text("utf-8")


def test_the_page_that_was_kept_is_that_of_its_numbers(tmp_path, options):
    (tmp_path / "drift").mkdir()
    shutil.copy(KEPT / "tables.json", tmp_path / "drift")
    report = Report("drift", "tables", replace(options, output=tmp_path, redraw=True))
    drift.show(report.read_numbers(), report)
    page = (tmp_path / "drift/tables.md").read_text("utf-8")
    assert page == (KEPT / "tables.md").read_text("utf-8")
    for table in json.loads((KEPT / "tables.json").read_text("utf-8"))["tables"].values():
        for part, word in (("test", "Test"), ("corrupted", "Drifted")):
            mean = statistics.fmean(one[part]["nll"] for one in table["methods"]["default"])
            assert f"{word} NLL {mean:.3f}: " in page
