"""Kept files of every format that is read: each loads, and gives the numbers that its writer gave."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import bitbayes as bb
import file_cases
from bitbayes.io import checkpoint, posterior_file, temperature_file

POSTERIORS = file_cases.FILES / "posterior_7"
TEMPERATURES = file_cases.FILES / "temperature_1"
CHECKPOINTS = file_cases.FILES / "checkpoint_7"
# What each kind of file is read in. `test_posterior_file.py` reads those of format 5.
READ = {
    "posterior": (posterior_file.MARGINAL_FORMAT, posterior_file.FORMAT),
    "temperature": (temperature_file.FORMAT,),
    "checkpoint": (checkpoint.FORMAT,),
}


def expected(folder):
    return json.loads((folder / "expected.json").read_text())


def assert_close(found, kept):
    assert found.keys() == kept.keys()
    for name, values in kept.items():
        pair = (torch.tensor(each, dtype=torch.float64) for each in (found[name], values))
        # A linear algebra of another machine rounds differently, and the variances are of size 1e6.
        torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-9)


def test_there_are_files_of_every_format_that_is_read():
    found = {path.name for path in file_cases.FILES.iterdir()}
    assert found == {f"{kind}_{number}" for kind, numbers in READ.items() for number in numbers}
    for folder in file_cases.FILES.iterdir():
        files = {path.stem for path in folder.glob("*.safetensors")}
        refused = {"hidden"} if folder.name == "posterior_5" else set()
        assert files - refused == expected(folder).keys()


def test_the_files_of_the_present_format_are_of_all_cases():
    assert expected(POSTERIORS).keys() == {*file_cases.CASES, *file_cases.EARLY}


@pytest.mark.parametrize("name", expected(POSTERIORS))
def test_a_posterior_predicts_what_it_did(name, tmp_path):
    bayes = bb.Laplace.load(POSTERIORS / f"{name}.safetensors", file_cases.network_of(name))
    bayes.save(tmp_path / "again")
    again = bb.Laplace.load(tmp_path / "again", file_cases.network_of(name))
    for each in (bayes, again):
        assert_close(file_cases.measured(each), expected(POSTERIORS)[name])


@pytest.mark.parametrize("name", expected(POSTERIORS))
def test_a_posterior_can_be_fitted_on(name):
    bayes = bb.Laplace.load(POSTERIORS / f"{name}.safetensors", file_cases.network_of(name))
    bayes.update(file_cases.loader(name, 20, shift=200))
    assert bayes.posterior.fitted.count == 80
    assert all(torch.tensor(each).isfinite().all() for each in file_cases.measured(bayes).values())


@pytest.mark.parametrize("name", expected(TEMPERATURES))
def test_a_temperature_is_what_it_was(name):
    model = file_cases.network_of("several_labels" if name == "several_labels" else "tuned")
    scaled = bb.TemperatureScaling.load(TEMPERATURES / f"{name}.safetensors", model)
    found = {"temperature": scaled.temperature, "likelihood": scaled.likelihood}
    assert found == expected(TEMPERATURES)[name]


def test_a_fit_goes_on_from_a_checkpoint(tmp_path):
    ((name, kept),) = expected(CHECKPOINTS).items()
    path = shutil.copy(CHECKPOINTS / f"{name}.safetensors", tmp_path)
    bayes = bb.Laplace(file_cases.network_of("tuned"), prior_variance=2.0, residual=True)
    others = file_cases.loader("tuned", shift=1)
    with pytest.raises(bb.errors.DataError, match="not those that were summed up"):
        bayes.fit(others, checkpoint=tmp_path)
    bayes.fit(file_cases.loader("tuned"), checkpoint=tmp_path)
    assert not Path(path).exists()
    assert_close(file_cases.measured(bayes), kept)


def test_the_page_names_the_formats_that_are_read():
    page = (Path(__file__).parents[2] / "docs" / "stability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)
    named = {kind: (written, read) for kind, written, read in rows}
    for kind, formats in READ.items():
        written, read = named[kind]
        assert written == str(formats[-1])
        assert {int(each) for each in re.findall(r"\d+", read)} == {*formats}
