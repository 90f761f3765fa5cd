"""The command line in a shell: quick answers without torch, completion, suggestions, and Ctrl-C."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bitbayes import __version__
from bitbayes.cli import app
from bitbayes.reproduction.names import NAMES

# Runs the command, and says at the end whether torch was imported.
WATCHED = """
import sys
from bitbayes.cli import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def detect_changes(*arguments, **environment):
    command = [sys.executable, "-c", WATCHED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["audit", "--help"], ["reproduce", "--help"]]
)
def test_version_and_help_do_without_torch(arguments):
    result = detect_changes(*arguments)
    assert result.returncode == 0 and result.stderr.split() == ["False"]
    if arguments == ["--version"]:
        assert result.stdout == f"bitbayes {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_completion_is_printed(shell):
    result = detect_changes(_BITBAYES_COMPLETE=f"source_{shell}")
    assert result.returncode == 0 and result.stderr.split() == ["False"]
    assert "_BITBAYES_COMPLETE" in result.stdout and f"complete_{shell}" in result.stdout


def test_bash_completes_commands_and_names_without_torch():
    def completed(words):
        place = str(len(words.split()) - 1)
        result = detect_changes(_BITBAYES_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
        assert result.stderr.split() == ["False"]
        return result.stdout.split()

    assert completed("bitbayes rep") == ["reproduce"]
    assert completed("bitbayes reproduce table") == ["table2", "table3", "table1"]


def test_help_names_all_tables_and_figures():
    shown = CliRunner().invoke(app, ["reproduce", "--help"]).stdout.replace(",", " ").split()
    assert not {*NAMES, "all"} - {word.strip(".") for word in shown}


def test_a_misspelt_table_gets_a_suggestion():
    result = CliRunner().invoke(app, ["reproduce", "tabel2"])
    assert result.exit_code == 1
    assert "NAME='tabel2' is not known, did you mean 'table2'?" in result.stderr
    assert "Traceback" not in result.output


def test_ctrl_c_says_what_was_interrupted_and_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def interrupted(names, options, on_written):
        on_written(names[0], [Path("results/toy/toy.json")])
        raise KeyboardInterrupt

    monkeypatch.setattr("bitbayes.reproduction.paper.reproduce", interrupted)
    result = CliRunner().invoke(app, ["reproduce", "toy", "table2", "--cache", "kept"])
    assert result.exit_code == 130
    assert "interrupted while making table2 (2 of 2)" in result.stderr
    assert "the results of toy in results" in result.stderr and "trained networks in kept" in result.stderr
    assert "the same command continues it" in result.stderr
