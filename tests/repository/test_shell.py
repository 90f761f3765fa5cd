"""The command line in a shell: quick answers without torch, completion, and where a command has gone."""

import os
import subprocess
import sys

import pytest

from bitbayes import __version__

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


def test_bash_completes_commands_without_torch():
    def completed(words):
        place = str(len(words.split()) - 1)
        result = detect_changes(_BITBAYES_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
        assert result.stderr.split() == ["False"]
        return result.stdout.split()

    assert completed("bitbayes aud") == ["audit"]


def test_reproduce_says_where_it_has_gone():
    result = detect_changes("reproduce", "table2", "--train", "cifar10")
    assert result.returncode == 1 and result.stdout == ""
    (line, torch) = result.stderr.splitlines()
    assert line.endswith(": python -m paper table2 --train cifar10") and torch == "False"
