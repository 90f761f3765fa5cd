"""The explorer's page as a file. `tests/browser/test_explorer.py` opens it."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bitbayes import cli
from bitbayes.explorer import render_explorer
from bitbayes.explorer.numbers import shipped_numbers
from bitbayes.explorer.page import _as_script

MOST_BYTES = 100_000  # of the page without its numbers


def test_the_page_is_one_small_file_that_loads_nothing():
    page = render_explorer()
    assert len(render_explorer({}).encode()) < MOST_BYTES
    assert not re.search(
        r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(|<link|src=|import\(|fetch\(", page
    )
    assert json.loads(re.search(r"const NUMBERS = (.*);\n</script>", page)[1]) == shipped_numbers()


def test_numbers_cannot_end_the_script():
    assert _as_script({"title": "</script>"}) == '{"title":"<\\/script>"}'


def test_the_command_writes_the_page_and_opens_it_when_asked(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(cli.webbrowser, "open", opened.append)
    file = tmp_path / "page.html"
    result = CliRunner().invoke(cli.app, ["explore", "--output", str(file)])
    assert result.exit_code == 0 and f"Page: {file}" in result.output.replace("\n", "")
    assert file.read_text(encoding="utf-8") == render_explorer() and not opened
    result = CliRunner().invoke(cli.app, ["explore", "--output", str(file), "--open"])
    assert result.exit_code == 0
    assert opened == [file.as_uri()]
    assert f"no browser was found; open {file} yourself" in result.stderr  # `append` returns no True


def test_the_command_does_without_torch(tmp_path):
    """It takes seconds to import, and the page has all numbers."""
    command = [sys.executable, "-X", "importtime", "-m", "bitbayes", "explore"]
    result = subprocess.run(
        [*command, "--output", str(tmp_path / "page.html")], capture_output=True, text=True
    )
    assert result.returncode == 0
    imported = re.findall(r"\| +([\w.]+)$", result.stderr, re.MULTILINE)
    assert "bitbayes.explorer.page" in imported
    assert {"torch", "numpy", "matplotlib"}.isdisjoint(imported)


def test_rebuild_writes_the_page_with_new_numbers(tmp_path, monkeypatch):
    numbers = {"toys": ["new"]}
    monkeypatch.setattr("bitbayes.explorer.train_numbers", lambda report: report("Training") or numbers)
    file = tmp_path / "page.html"
    result = CliRunner().invoke(cli.app, ["explore", "--rebuild", "--output", str(file)])
    assert result.exit_code == 0 and file.read_text(encoding="utf-8") == render_explorer(numbers)


def test_a_file_of_something_else_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("bitbayes.explorer.train_numbers", lambda report: pytest.fail("trained for nothing"))
    file = tmp_path / "thesis.html"
    file.write_text("ten years of work")
    result = CliRunner().invoke(cli.app, ["explore", "--rebuild", "--output", str(file)])
    assert result.exit_code == 1 and "is no page of bitbayes" in result.output.replace("\n", " ")
    assert file.read_text() == "ten years of work"


def test_a_page_that_cannot_be_written_is_refused_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr("bitbayes.explorer.train_numbers", lambda report: pytest.fail("trained for nothing"))
    result = CliRunner().invoke(
        cli.app, ["explore", "--rebuild", "--output", str(tmp_path / "nowhere" / "page.html")]
    )
    assert result.exit_code == 1 and "there is no folder" in result.output
