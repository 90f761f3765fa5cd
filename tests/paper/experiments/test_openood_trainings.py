"""OpenOOD's sets over trainings: the rows follow from the numbers of `results/shift`."""

import csv
import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from bitbayes.errors import FileError
from paper.experiments import openood, openood_trainings
from paper.report import Report
from paper.session import Session

RESULTS = Path(__file__).parents[3] / "results"
FOLDER = RESULTS / "openood-trainings"


@pytest.mark.parametrize("name", openood.NEAR)
def test_the_kept_numbers_follow_from_those_of_shift(name):
    source = json.loads((RESULTS / f"shift/{name}-40-epochs.json").read_text("utf-8"))
    kept = json.loads((FOLDER / "images.json").read_text("utf-8"))["sets"][name]
    with (FOLDER / "images.csv").open(encoding="utf-8") as file:
        records = [each for each in csv.DictReader(file) if each["trained_on"] == name]
    near = "CIFAR-100" if name == "cifar10" else "CIFAR-10"
    runs = source["methods"]["default"]
    ours = kept["rows"]["default"]
    assert ours["near"] == pytest.approx([100 * run["sets"][near]["auroc"] for run in runs], rel=1e-5)
    assert ours["far"] == pytest.approx([100 * run["sets"]["SVHN"]["auroc"] for run in runs], rel=1e-5)
    assert ours["accuracy"] == pytest.approx([100 * run["test"]["accuracy"] for run in runs], rel=1e-5)
    assert kept["rows"]["knn"]["near"] == pytest.approx(
        [100 * each for each in source["detectors"]["knn"][near]], rel=1e-5
    )
    assert [float(each["near_auroc"]) for each in records if each["method"] == "default"] == ours["near"]


@pytest.mark.parametrize(("name", "published"), [("cifar10", (91.1, 94.7)), ("cifar100", (81.4, 87.0))])
def test_the_page_shows_the_distance_to_the_best_published(name, published):
    assert openood.best_published(name) == published
    rows = json.loads((FOLDER / "images.json").read_text("utf-8"))["sets"][name]["rows"]
    page = (FOLDER / "images.md").read_text("utf-8")
    for each in rows.values():
        near, far = (statistics.fmean(each[kind]) for kind in ("near", "far"))
        (line,) = [
            line
            for line in page.splitlines()
            if line.startswith(f"| {each['title']} |") and f"{far:.1f}" in line
        ]
        assert f"| {near - published[0]:.1f} |" in line


def test_without_numbers_an_error_names_the_command(options, tmp_path):
    with pytest.raises(FileError, match="python -m paper shift"):
        openood_trainings.measure(Session(replace(options, output=tmp_path / "none")))


def test_one_set_is_enough(options):
    (options.output / "shift").mkdir(parents=True)
    source = (RESULTS / "shift/cifar100-40-epochs.json").read_text("utf-8")
    (options.output / "shift/cifar100.json").write_text(source, encoding="utf-8")
    report = Report("openood-trainings", "images", options)
    values = report.write_numbers(openood_trainings.measure(Session(options)))
    openood_trainings.show(values, report)
    assert list(values["sets"]) == ["cifar100"]
    assert {path.suffix for path in report.written} == {".json", ".md", ".csv", ".png", ".pdf"}
