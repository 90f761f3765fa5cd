"""The command line: audits of users' own classifiers, errors, help and version."""

import base64
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import bitbayes
from bitbayes.auditing.findings import AUDITED_METHODS
from bitbayes.cli import app

TARGET = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def points(n, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    return TensorDataset(4 * y[:, None] + torch.randn(n, 2, generator=generator), y)

def classifier():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    x, y = points(80, 0).tensors
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    names = ("train", "validation", "test")
    loaders = {name: DataLoader(points(80, seed), 32) for seed, name in enumerate(names)}
    return {"model": model, **loaders, "outliers": {"left": torch.randn(30, 2) - 20}}

def controls():
    return {**classifier(), "outliers": {"red \\x1b[31m\\u202e\\x00": torch.randn(30, 2) - 20}}

def shouts():
    raise ValueError("\\x1b[31mred\\nlines")

def leaves():
    raise SystemExit(7)

class NoText(Exception):
    def __str__(self):
        raise RuntimeError

def no_text():
    raise NoText

def __getattr__(name):
    raise RuntimeError(f"no {name}") if name == "lazy" else AttributeError(name)

def unpaired():
    return {**classifier(), "validation": [torch.zeros(3, 2)]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "blobs_target", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "blobs_target.py").write_text(TARGET)
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def numbers(part: Any) -> list[float]:
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, list):
        return [number for inner in part for number in numbers(inner)]
    return [part] if isinstance(part, (int, float)) else []


def test_an_audit_of_a_users_classifier(folder: Path) -> None:
    result = run(
        "audit", "blobs_target:classifier", "--json", "numbers.json", "--seed", "3", "--device", "cpu"
    )
    assert result.exit_code == 0, result.output
    assert "Accuracy, %" in result.stdout
    assert re.search(r"Chosen for bitbayes: prior variance \S+, temperature \S+, residual", result.stdout)
    assert "Page: bitbayes-report.html" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "Fitting" in result.stderr
    assert "Fitting" not in result.stdout

    page = (folder / "bitbayes-report.html").read_text("utf-8")
    assert "On 80 test inputs of the kind it was trained for, the plain network is right" in page
    assert "Shown things that belong to none of its classes (left)" in page
    assert "On the test inputs bitbayes changes" in page
    assert not re.search(r"https?:", page)

    found = json.loads((folder / "numbers.json").read_text("utf-8"))
    assert found["schema"] == 2
    assert (found["subject"], found["classes"], found["seed"]) == ("blobs_target:classifier", 2, 3)
    assert set(found["test"]) == set(AUDITED_METHODS)
    assert [outlier["kind"] for outlier in found["outliers"]] == ["given", "noise", "far", "far", "far"]
    assert found["sizes"] == {"train": 80, "validation": 80, "test": 80}
    assert set(found["cost"]) == {"fit", "tune", "predict", "forward_milliseconds"}
    assert all(math.isfinite(number) for number in numbers(found))
    assert sorted(path.name for path in folder.glob("*.*")) == [
        "bitbayes-report.html",
        "blobs_target.py",
        "numbers.json",
    ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["blobs_target:nothing"], "has no function 'nothing'"),
        (["no_such_module:f"], "no module 'no_such_module'"),
        (["sys:nosuch"], "module 'sys' (built in) has no function 'nosuch'"),
        (["blobs_target:leaves"], "blobs_target:leaves raised SystemExit: 7 (blobs_target.py, line"),
        (["blobs_target:no_text"], "blobs_target:no_text raised NoText (blobs_target.py, line"),
        (["blobs_target:lazy"], "looking for blobs_target:lazy raised RuntimeError: no lazy"),
        (["blobs_target:shouts"], r"raised ValueError: \x1b[31mred lines (blobs_target.py"),
        (["blobs_target:unpaired"], "'validation': batch 0 is a Tensor: expected a pair"),
        (["blobs_target:classifier", "--output", "nowhere/page.html"], "there is no folder nowhere"),
        (["blobs_target:classifier", "--json", "."], "is a folder"),
    ],
)
def test_an_error_is_one_line_on_stderr(folder: Path, arguments: list[str], message: str) -> None:
    result = run("audit", *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("bitbayes: ")
    assert "Traceback" not in result.output
    assert not (folder / "bitbayes-report.html").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "--nonsense"],
        ["audit", "--seed", "x"],
        ["audit", "--seed", "99999999999999999999"],
        ["audit", "--seed", "-1"],
        ["reproduce", "toy", "--seed", str(2**32)],
        ["frobnicate"],
        ["audit", "a:b", "c:d"],
    ],
)
def test_wrong_usage_exits_with_two(folder: Path, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("command", [["audit", "blobs_target:classifier"], ["reproduce", "toy", "--quick"]])
@pytest.mark.parametrize("name", ["toaster", "meta", "vulkan", ""])
def test_a_device_that_cannot_compute_is_an_error(folder: Path, command: list[str], name: str) -> None:
    result = run(*command, "--device", name)
    assert result.exit_code == 2
    assert f"{name!r} cannot compute here" in result.stderr
    assert len(result.stderr) < 800


def test_control_characters_of_names_reach_neither_page_nor_terminal(folder: Path) -> None:
    result = run("audit", "blobs_target:controls", "--json", "numbers.json")
    assert result.exit_code == 0, result.output
    page = (folder / "bitbayes-report.html").read_text("utf-8")
    pictures = [base64.b64decode(text).decode() for text in re.findall(r"svg\+xml;base64,([^\"]+)", page)]
    assert len(pictures) == 9
    for text in (result.stdout, result.stderr, page, *pictures):
        assert not re.search("[\x00\x1b\u202e]", text)
    shown = r"red \x1b[31m\u202e\x00"
    assert shown in page and any(shown in text for text in pictures)
    assert json.loads((folder / "numbers.json").read_text("utf-8"))["outliers"][0]["name"] == shown


def test_help_says_what_the_function_must_return() -> None:
    result = run("audit", "--help")
    assert result.exit_code == 0
    for word in (
        "model",
        "train",
        "validation",
        "test",
        "outliers",
        "no arguments",
        "returns a dict",
        "--seed",
    ):
        assert word in result.stdout


def test_the_version_is_printed_by_the_command_and_by_python_m() -> None:
    assert run("--version").stdout.split() == ["bitbayes", bitbayes.__version__]
    command = [sys.executable, "-m", "bitbayes", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("bitbayes ")


def run_without_reader(*arguments: str, stderr: bool) -> subprocess.CompletedProcess[str]:
    """Run the command with its stdout, and maybe its stderr, in a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-c", "from bitbayes.cli import main; main()", *arguments],
            stdout=writer,
            stderr=writer if stderr else subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize("stderr", [False, True])
def test_an_audit_that_nobody_reads_writes_its_files_and_ends_quietly(folder: Path, stderr: bool) -> None:
    result = run_without_reader("audit", "blobs_target:classifier", "--json", "numbers.json", stderr=stderr)
    assert result.returncode == 0
    assert "rror" not in (result.stderr or "")
    assert "</html>" in (folder / "bitbayes-report.html").read_text("utf-8")
    assert json.loads((folder / "numbers.json").read_text("utf-8"))["subject"]


def test_a_reproduction_that_nobody_reads_makes_all_that_was_asked_for(folder: Path) -> None:
    names = ["bounded-logit", "linear-regions"]
    result = run_without_reader("reproduce", *names, "--quick", "--output", "results", stderr=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(path.name for path in (folder / "results").iterdir()) == names


def test_an_audit_whose_table_cannot_be_printed_has_written_its_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unprintable(found: Any) -> str:
        raise UnicodeEncodeError("ascii", "’", 0, 1, "ordinal not in range(128)")

    monkeypatch.setattr("bitbayes.auditing.terminal_table", unprintable)
    assert isinstance(run("audit", "blobs_target:classifier").exception, UnicodeEncodeError)
    assert (folder / "bitbayes-report.html").exists()
