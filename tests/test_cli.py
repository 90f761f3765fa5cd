"""The command line: audits of users' own classifiers, errors, help and version."""

import html
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
    return {**classifier(), "outliers": {"red \\x1b[31m\\u202e\\x00 :car:": torch.randn(30, 2) - 20}}

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

def rivals():
    parts = classifier()
    net = parts.pop("model")
    odd = "my <forest>: a.b \\x1b[31m"
    models = {"net": net, odd: lambda x: net(2 * x).softmax(1)}
    return {**parts, "models": models}

def functions():
    parts = classifier()
    return {"models": {"a": lambda x: parts["model"](x).softmax(1)}, "test": parts["test"]}

def raises_in_the_middle():
    calls = iter(range(100))
    def call(x):
        if next(calls) == 2:
            raise ZeroDivisionError("no more")
        return torch.full((len(x), 2), 0.5)
    return {"models": {"a": call}, "test": classifier()["test"]}

def holds_nan():
    x, y = points(80, 2).tensors
    x[50] = float("nan")
    return {**classifier(), "test": DataLoader(TensorDataset(x, y), 32)}

def one_class():
    return {**classifier(), "test": [(torch.randn(9, 2), torch.ones(9))]}

def another_shape():
    return {**classifier(), "outliers": {"wide": torch.zeros(4, 7)}}

def regression():
    return {**classifier(), "train": [(torch.randn(9, 2), torch.randn(9))]}

def with_sites(keep=80):
    parts = classifier()
    batches = [(x, y, {"site": ["<north>", "south"] * (len(x) // 2)}) for x, y in parts["test"]]
    batches[-1][2]["site"] = batches[-1][2]["site"][: keep - 64]
    return {**parts, "test": batches, "name": "<Blobs>", "classes": ["left", "right"], "segment": "site"}

def short_column():
    return with_sites(67)

def no_column():
    return {**classifier(), "segment": "site"}

def nine_classes():
    return {**classifier(), "classes": range(9)}

def unpaired():
    return {**classifier(), "validation": [torch.zeros(3, 2)]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "blobs_target", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("bitbayes.auditing.costs.ENOUGH_SECONDS", 0.01)
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
    assert re.search(
        r"Chosen for bitbayes: prior variance \S+, temperature \S+, near variance", result.stdout
    )
    assert "Report: bitbayes-report.html\n" in result.stdout
    assert result.stdout.startswith("bitbayes ")  # the verdict comes first
    assert re.search(r"^  left +\S+ → \S+  (better|same|worse)", result.stdout, re.MULTILINE)
    assert result.stdout.index("bayes = bb.Laplace(model)") < result.stdout.index("Accuracy, %")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "Fitting" in result.stderr
    assert "Fitting" not in result.stdout

    page = (folder / "bitbayes-report.html").read_text("utf-8")
    verdict = " ".join(result.stdout.split("\n\n")[0].split())
    headline = re.search(r"<h1>(.*?)</h1>", page)
    assert headline and verdict.startswith(html.unescape(headline[1]))
    assert "bitbayes audit blobs_target:classifier --seed 3 --device cpu" in page
    assert not re.search(r"https?:", page)

    found = json.loads((folder / "numbers.json").read_text("utf-8"))
    assert found["schema"] == 6
    assert (found["name"], found["classes"], found["seed"]) == ("blobs_target:classifier", 2, 3)
    assert set(found["test"]) == set(AUDITED_METHODS)
    assert [outlier["kind"] for outlier in found["outliers"]] == ["given", "noise", "far", "far", "far"]
    assert found["sizes"] == {"train": 80, "validation": 80, "test": 80}
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
        (["blobs_target:classifier", "--json", "a", "--output", "a"], "are the same file, a: give two names"),
        (["blobs_target:classifier", "--json", "b/../a", "--output", "a"], "are the same file, a"),
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
        ["frobnicate"],
        ["audit", "a:b", "c:d"],
    ],
)
def test_wrong_usage_exits_with_two(folder: Path, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("name", ["toaster", "meta", "vulkan", ""])
def test_a_device_that_cannot_compute_is_an_error(folder: Path, name: str) -> None:
    result = run("audit", "blobs_target:classifier", "--device", name)
    assert result.exit_code == 2
    assert f"{name!r} cannot compute here" in result.stderr
    assert len(result.stderr) < 800


def test_control_characters_of_names_reach_neither_page_nor_terminal(folder: Path) -> None:
    result = run("audit", "blobs_target:controls", "--json", "numbers.json")
    assert result.exit_code == 0, result.output
    page = (folder / "bitbayes-report.html").read_text("utf-8")
    for text in (result.stdout, result.stderr, page):
        assert not re.search("[\x00\x1b\u202e]", text)
    shown = r"red \x1b[31m\u202e\x00 :car:"
    assert shown in page
    assert ":car:" in result.stdout  # and no picture of one
    assert json.loads((folder / "numbers.json").read_text("utf-8"))["outliers"][0]["name"] == shown


@pytest.mark.parametrize(
    "conditions, lines",
    [
        (["ece>1", "accuracy<0.1"], []),
        (
            ["accuracy>0.1", "ece>1", "nll<=5"],
            ["accuracy>0.1: bitbayes.accuracy is", "nll<=5: bitbayes.nll is"],
        ),
    ],
)
def test_conditions_decide_the_exit_code(folder: Path, conditions: list[str], lines: list[str]) -> None:
    options = [part for each in conditions for part in ("--fail-if", each)]
    result = run("audit", "blobs_target:classifier", *options)
    assert result.exit_code == (3 if lines else 0)
    failed = [line for line in result.stderr.splitlines() if line.startswith("bitbayes: failed: ")]
    assert len(failed) == len(lines)
    for line, start in zip(failed, lines, strict=True):
        assert line.startswith(f"bitbayes: failed: {start} ")
    assert (folder / "bitbayes-report.html").exists()  # and the verdict was printed
    assert "Report: " in result.stdout


def test_a_wrong_condition_is_an_error_before_any_work(folder: Path) -> None:
    result = run("audit", "no_such_module:f", "--fail-if", "acuracy<0.9")
    assert result.exit_code == 1
    assert "'acuracy' in 'acuracy<0.9' is no measure: did you mean 'accuracy'?" in result.stderr


def test_predictors_side_by_side_and_a_condition_on_one_of_them(folder: Path) -> None:
    shown = r"my <forest>: a.b \x1b[31m"
    condition = f"{shown}.nll > net.nll"
    result = run("audit", "blobs_target:rivals", "--json", "numbers.json", "--fail-if", condition)
    assert result.exit_code == 3, result.output
    assert f"failed: {condition}: {shown}.nll is" in result.stderr
    found = json.loads((folder / "numbers.json").read_text("utf-8"))
    assert list(found["test"]) == ["net", "temperature", "energy", "bitbayes", shown]
    assert (found["base"], found["ours"], list(found["details"])) == ("net", "bitbayes", ["paper"])
    assert max(map(len, result.stdout.splitlines())) <= 80
    page = (folder / "bitbayes-report.html").read_text("utf-8")
    assert html.escape(shown) in page and "<forest>" not in page and "\x1b" not in page
    assert run("audit", "blobs_target:classifier", "--fail-if", "paper.ece>0").exit_code == 3


def test_functions_need_neither_training_nor_validation_data(folder: Path) -> None:
    result = run("audit", "blobs_target:functions", "--fail-if", "ece>1", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "Accuracy, %" in result.stdout


def test_a_condition_on_no_column_is_an_error_before_the_audit(folder: Path) -> None:
    result = run("audit", "blobs_target:rivals", "--fail-if", "temprature.ece>0.1")
    assert result.exit_code == 1 and "Fitting" not in result.stderr
    assert "'temprature' in 'temprature.ece>0.1' is no column: did you mean 'temperature'?" in result.stderr


@pytest.mark.parametrize(
    "target, message",
    [
        ("raises_in_the_middle", "'test': batch 1: 'a' raised ZeroDivisionError on inputs of shape (32, 2)"),
        ("holds_nan", "'test': batch 1: 'plain' gives NaN or infinity. The inputs hold NaN or infinity."),
        ("one_class", "'test': the label of all 9 inputs is 1"),
        ("another_shape", "outliers 'wide': batch 0: 'plain' raised RuntimeError on inputs of shape (4, 7)"),
        ("regression", "the targets of 'train' are real numbers"),
        ("nine_classes", "classes has 9 names, and the model has 2 classes"),
        ("no_column", "'test', batch 0: there is no column 'site'"),
        ("short_column", "'test', batch 2: the column 'site' has 3 values for 16 inputs"),
    ],
)
def test_an_error_in_the_data_names_set_and_batch_and_keeps_the_old_report(
    folder: Path, target: str, message: str
) -> None:
    assert run("audit", "blobs_target:functions").exit_code == 0
    before = (folder / "bitbayes-report.html").read_bytes()
    result = run("audit", f"blobs_target:{target}")
    assert result.exit_code == 1
    assert message in result.stderr.splitlines()[-1]
    assert (folder / "bitbayes-report.html").read_bytes() == before


def test_names_and_segment_come_from_the_target_and_from_options(folder: Path) -> None:
    assert run("audit", "blobs_target:with_sites", "--json", "numbers.json").exit_code == 0
    found = json.loads((folder / "numbers.json").read_text("utf-8"))
    assert (found["name"], found["class_names"], found["segment"]) == ("<Blobs>", ["left", "right"], "site")
    assert {(each["name"], each["size"]) for each in found["by_segment"]} == {("<north>", 40), ("south", 40)}
    page = (folder / "bitbayes-report.html").read_text("utf-8")
    assert "&lt;Blobs&gt;" in page and "<Blobs>" not in page and "<north>" not in page
    options = ["--name", "Mine", "--classes", "a, b & c", "--features", "x,y", "--segment", "site"]
    assert run("audit", "blobs_target:with_sites", "--json", "numbers.json", *options).exit_code == 0
    found = json.loads((folder / "numbers.json").read_text("utf-8"))
    assert (found["name"], found["class_names"], found["features"]) == ("Mine", ["a", "b & c"], ["x", "y"])
    assert found["command"].endswith("--name Mine --classes 'a,b & c' --features x,y --segment site")
    result = run("audit", "blobs_target:classifier", "--segment", "site")
    assert result.exit_code == 1 and "there is no column 'site'" in result.stderr


def test_a_report_is_replaced_and_that_is_said(folder: Path) -> None:
    assert "replaced" not in run("audit", "blobs_target:classifier", "--json", "numbers.json").stdout
    result = run("audit", "blobs_target:classifier", "--json", "numbers.json")
    assert result.exit_code == 0
    assert "Numbers: numbers.json (replaced the old one)" in result.stdout
    assert "Report: bitbayes-report.html (replaced the old one)" in result.stdout


@pytest.mark.parametrize("option", ["--output", "--json"])
def test_a_file_of_something_else_is_kept_unless_forced(folder: Path, option: str) -> None:
    other = folder / "thesis.html"
    other.write_text(work := "Ten years of work, and one run of bitbayes audit")
    result = run("audit", "no_such_module:f", option, "thesis.html")
    assert result.exit_code == 1
    assert "thesis.html exists and is no report of bitbayes" in result.stderr
    assert other.read_text() == work
    forced = run("audit", "blobs_target:classifier", option, "thesis.html", "--force")
    assert forced.exit_code == 0
    assert other.read_text() != work


@pytest.mark.parametrize("found", [True, False])
def test_the_report_is_opened(folder: Path, monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or found)
    result = run("audit", "blobs_target:classifier", "--open", "--output", "my report.html")
    assert result.exit_code == 0
    assert opened == [(folder / "my report.html").as_uri()]
    assert ("no browser was found; open my report.html yourself" in result.stderr) != found


def test_an_interrupted_audit_says_where_and_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bitbayes.auditing.measure.score_rays", interrupt)
    result = run("audit", "blobs_target:classifier", "--json", "numbers.json")
    assert result.exit_code == 130
    assert "bitbayes: interrupted during “Settings”; nothing was written" in result.stderr
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["blobs_target.py"]


def test_an_audit_that_is_interrupted_while_writing_says_what_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bitbayes.auditing.report.AuditReport.save", interrupt)
    result = run("audit", "blobs_target:classifier", "--json", "numbers.json")
    assert result.exit_code == 130
    assert "only numbers.json was written" in result.stderr


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
        "--fail-if",
        "Exit codes: 0 success",
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


@pytest.mark.parametrize("stderr", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_audit_that_nobody_reads_writes_its_files_and_ends_quietly(folder: Path, stderr: bool) -> None:
    result = run_without_reader("audit", "blobs_target:classifier", "--json", "numbers.json", stderr=stderr)
    assert result.returncode == 0
    assert "rror" not in (result.stderr or "")
    assert "</html>" in (folder / "bitbayes-report.html").read_text("utf-8")
    assert json.loads((folder / "numbers.json").read_text("utf-8"))["name"]


def test_what_an_encoding_cannot_write_ends_no_audit(folder: Path) -> None:
    command = [sys.executable, "-c", "from bitbayes.cli import main; main()", "audit"]
    result = subprocess.run(
        [*command, "blobs_target:classifier", "--fail-if", "ece>=0"],
        capture_output=True,
        encoding="cp1252",
        env=os.environ | {"PYTHONIOENCODING": "cp1252"},  # of a pipe on Windows
        check=False,
    )
    assert result.returncode == 3, result.stderr
    assert "Normal inputs" in result.stdout and "?" in result.stdout
    assert "failed: ece>=0: bitbayes.ece is" in result.stderr


def test_an_audit_whose_table_cannot_be_printed_has_written_its_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unprintable(found: Any) -> str:
        raise UnicodeEncodeError("ascii", "’", 0, 1, "ordinal not in range(128)")

    monkeypatch.setattr("bitbayes.auditing.command.terminal_table", unprintable)
    assert isinstance(run("audit", "blobs_target:classifier").exception, UnicodeEncodeError)
    assert (folder / "bitbayes-report.html").exists()
