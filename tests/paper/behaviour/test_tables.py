"""Every table and figure of a data set, from training to files, on a tiny problem."""

import json

import pytest

from bitbayes.errors import ArgumentError, FileError
from paper.methods import Linearised
from paper.names import NAMES
from paper.numbers import paper_numbers
from paper.options import Options
from paper.registry import reproduce
from paper.report import STEMS, Report, round_floats

TABLES = [name for name in NAMES if name not in (*STEMS, "openood")]


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for each in value for number in numbers(each)]
    return [value] if isinstance(value, (int, float)) else []


@pytest.mark.slow
def test_every_table_is_made_and_can_be_drawn_again(options):
    """One session for all, so that networks are trained and methods fitted once."""
    heard = []
    written = reproduce(TABLES, options, lambda name, files: heard.append(name))
    assert heard == TABLES
    for name in TABLES:
        folder = options.output / name
        expected = {f"tiny.{e}" for e in ("json", "md", "png", "pdf")}
        expected |= {"trade-off": {"all.png", "all.pdf"}, "shift": {"tiny-few.md"}}.get(name, set())
        assert {path.name for path in folder.iterdir()} == expected
        values = json.loads((folder / "tiny.json").read_text())
        assert values["about"]["trials"] == 2 and values["about"]["versions"]["torch"]
        assert len(numbers(values)) > 10
        text = (folder / "tiny.md").read_text()
        assert f"python -m paper {name} --train tiny --trials 2" in text
        assert "nan" not in text and "| Method" in text
    assert len(written) == 4 * len(TABLES) + 3

    before = {path: path.read_bytes() for path in written if path.suffix in (".md", ".json")}
    again = Options(**{**vars(options), "redraw": True})
    reproduce(["table2", "ece"], again)
    assert all(path.read_bytes() == content for path, content in before.items())

    table2 = (options.output / "table2/tiny.md").read_text()
    for method in paper_numbers("table2")["MNIST"]["FMNIST"].values():  # the paper's numbers beside ours
        assert f"{method['aur'][0]:.1f} ± {method['aur'][1]:.1f}" in table2
    scores = json.loads((options.output / "table2/tiny.json").read_text())["scores_percent"]
    assert set(scores) == {"Tiny", "Fashion-MNIST", "Noise × 2000"}
    for method in ("plain", "temperature", "llla", "dla", "kfla", "ours", "default", "default-all"):
        assert len(scores["Tiny"][method]["mmc"]) == 2
        assert all(0 <= value <= 100 for value in numbers(scores["Noise × 2000"][method]))


@pytest.mark.slow
def test_the_embedded_digits(tmp_path, monkeypatch):
    """The table that needs no data, with the paper's own network, on a few of its images.

    Without linearised networks, which would take most of the time.
    """

    def refuse(*_):
        raise ArgumentError("not today")

    monkeypatch.setattr(Linearised, "fit", refuse)
    options = Options(
        train="digits", trials=1, quick=True, output=tmp_path, cache=tmp_path / "networks", progress=False
    )
    reproduce(["table2"], options)
    scores = json.loads((tmp_path / "table2/digits-quick.json").read_text())["scores_percent"]
    far = {key: found["mmc"][0] for key, found in scores["Noise × 2000"].items() if "mmc" in found}
    assert far["plain"] > 99 and far["ours"] < far["plain"] and far["default"] < 12
    written = (tmp_path / "table2/digits-quick.md").read_text()
    assert "Not run: DLA, linearised (not today)." in written
    assert not (tmp_path / "networks").exists()  # the trained network comes with the package


def test_another_seed_is_another_training_with_files_of_its_own(options):
    again = Options(**{**vars(options), "seed": 1})
    first, other = (reproduce(["table1"], each)[1] for each in (options, again))
    assert (first.name, other.name) == ("tiny.md", "tiny-seed1.md")
    assert "--trials 2 --seed 1`" in other.read_text() and "--seed" not in first.read_text()
    assert first.read_text().splitlines()[4:] != other.read_text().splitlines()[4:]


def test_there_is_nothing_to_redraw(options):
    with pytest.raises(FileError, match="make them first"):
        reproduce(["table2"], Options(**{**vars(options), "redraw": True}))


@pytest.mark.parametrize("text", ["", "17", "[1]", "{}", '{"about": NaN}', "[" * 100_000])
def test_damaged_numbers_are_not_redrawn(options, text):
    folder = options.output / "table2"
    folder.mkdir(parents=True)
    (folder / "tiny.json").write_text(text)
    with pytest.raises(FileError, match=r"tiny\.json: make them first"):
        reproduce(["table2"], Options(**{**vars(options), "redraw": True}))


def test_folders_are_looked_at_before_any_work(options, tmp_path, monkeypatch):
    monkeypatch.setattr("paper.registry.Session", lambda _: pytest.fail("work began"))
    (tmp_path / "file").write_text("")
    for where in ({"output": tmp_path / "file"}, {"cache": tmp_path / "file" / "networks"}):
        with pytest.raises(FileError, match="no folder"):
            reproduce(["table2"], Options(**{**vars(options), **where}))


@pytest.mark.parametrize("folder", ["output", "cache"])
def test_a_folder_that_cannot_be_made_is_refused(options, tmp_path, folder):
    where = {folder: tmp_path / ("n" * 300)}
    with pytest.raises(FileError, match="too long"):
        reproduce(["table2"], Options(**{**vars(options), **where}))


def test_an_interrupted_picture_leaves_the_old_one(options):
    report = Report("toy", "toy", options)

    class Interrupted:
        def savefig(self, file, **_):
            file.write(b"half")
            raise KeyboardInterrupt

    (report.folder / "toy.png").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        report.write_picture(Interrupted)
    assert [path.read_bytes() for path in report.folder.iterdir()] == [b"old"] and not report.written


def test_unknown_names(options):
    with pytest.raises(ArgumentError, match="name='table7' is not known"):
        reproduce(["table7"], options)
    with pytest.raises(ArgumentError, match="train='imagenet' is not known"):
        reproduce(["table2"], Options(**{**vars(options), "train": "imagenet"}))


def test_numbers_that_json_cannot_hold_become_null():
    assert round_floats({"a": [float("nan"), 1.23456789, float("inf")], 3: (1,)}) == {
        "a": [None, 1.23457, None],
        "3": [1],
    }
