"""The command `python -m paper`: help, suggestions, wrong usage, Ctrl-C, and pipes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paper.__main__ import app
from paper.names import NAMES

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "paper"]
# Runs the command, and says at the end whether torch was imported.
WATCHED = """
import sys
from paper.__main__ import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def detect_changes(*arguments):
    command = [sys.executable, "-c", WATCHED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_help_names_all_tables_and_figures_and_does_without_torch():
    result = detect_changes("--help")
    assert result.returncode == 0 and result.stderr.split() == ["False"]
    shown = result.stdout.replace(",", " ").split()
    assert not {*NAMES, "all"} - {word.strip(".") for word in shown}
    assert "Usage: python -m paper " in result.stdout


def test_a_misspelt_table_gets_a_suggestion():
    result = detect_changes("tabel2")
    assert result.returncode == 1
    said, torch = result.stderr.splitlines()
    assert said.startswith("paper: NAME='tabel2' is not known, did you mean 'table2'?") and torch == "False"


def test_wrong_usage_exits_with_two():
    assert run("toy", "--seed", str(2**32)).exit_code == 2
    assert run("toy", "--nonsense").exit_code == 2


@pytest.mark.parametrize("name", ["toaster", "meta", "vulkan", ""])
def test_a_device_that_cannot_compute_is_an_error(name):
    result = run("toy", "--quick", "--device", name)
    assert result.exit_code == 2
    assert f"{name!r} cannot compute here" in result.stderr
    assert len(result.stderr) < 800


def test_ctrl_c_says_what_was_interrupted_and_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def interrupted(names, options, on_written):
        on_written(names[0], [Path("results/toy/toy.json")])
        raise KeyboardInterrupt

    monkeypatch.setattr("paper.registry.reproduce", interrupted)
    result = run("toy", "table2", "--cache", "kept")
    assert result.exit_code == 130
    assert "interrupted while making table2 (2 of 2)" in result.stderr
    assert "the results of toy in results" in result.stderr and "trained networks in kept" in result.stderr
    assert "the same command continues it" in result.stderr


def test_a_run_that_nobody_reads_makes_all_that_was_asked_for(tmp_path):
    names = ["bounded-logit", "linear-regions"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [*COMMAND, *names, "--quick", "--output", str(tmp_path)],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_only_slow_methods_can_be_left_out():
    result = run("shift", "--without", "dropuot")
    assert result.exit_code == 1 and "--without='dropuot'" in result.stderr and "'dropout'" in result.stderr
