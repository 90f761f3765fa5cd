"""The explorer's page as a file. `tests/browser/test_explorer.py` opens it."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

import bitbayes as bb
from bitbayes import cli
from bitbayes.explorer import render_explorer
from bitbayes.explorer.page import _as_script
from bitbayes.explorer.toys import fold_batch_norms, pack_toys

MOST_BYTES = 300_000


@pytest.fixture(scope="module")
def toys():
    return pack_toys(quick=True)


def test_the_page_is_one_small_file_that_loads_nothing(toys):
    page = render_explorer(toys)
    assert len(page.encode()) < MOST_BYTES
    assert not re.search(
        r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(|<link|src=|import\(|fetch\(", page
    )
    assert json.loads(re.search(r"const PACKED_TOYS = (.*);\n</script>", page)[1]) == toys


def test_numbers_cannot_end_the_script():
    assert _as_script({"title": "</script>"}) == '{"title":"<\\/script>"}'


def test_the_packed_network_is_the_network():
    """With batch norms whose statistics are not 0 and 1."""
    network = bb.toys.MLP((2, 5, 4, 3), batch_norm=True).double()
    network(torch.randn(50, 2).double() * 3 + 1)  # in train mode: they follow the data
    x = torch.randn(7, 2).double()
    *hidden, (weight, bias) = fold_batch_norms(network.eval())
    values = x
    for own_weight, own_bias in hidden:
        values = torch.relu(values @ own_weight.T + own_bias)
    torch.testing.assert_close(values @ weight.T + bias, network(x), rtol=1e-12, atol=1e-12)


def test_the_command_writes_the_page_and_opens_it_when_asked(toys, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("bitbayes.explorer.render_explorer", lambda: render_explorer(toys))
    monkeypatch.setattr(cli.webbrowser, "open", opened.append)
    file = tmp_path / "page.html"
    result = CliRunner().invoke(cli.app, ["explore", "--output", str(file)])
    assert result.exit_code == 0 and f"Page: {file}" in result.output.replace("\n", "")
    assert file.read_text(encoding="utf-8") == render_explorer(toys) and not opened
    result = CliRunner().invoke(cli.app, ["explore", "--output", str(file), "--open"])
    assert result.exit_code == 0
    assert opened == [file.as_uri()]
    assert f"no browser was found; open {file} yourself" in result.stderr  # `append` returns no True


def test_a_file_of_something_else_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("bitbayes.explorer.render_explorer", lambda: pytest.fail("trained for nothing"))
    file = tmp_path / "thesis.html"
    file.write_text("ten years of work")
    result = CliRunner().invoke(cli.app, ["explore", "--output", str(file)])
    assert result.exit_code == 1 and "is no page of bitbayes" in result.output.replace("\n", " ")
    assert file.read_text() == "ten years of work"


def test_a_page_that_cannot_be_written_is_refused_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr("bitbayes.explorer.render_explorer", lambda: pytest.fail("trained for nothing"))
    result = CliRunner().invoke(cli.app, ["explore", "--output", str(tmp_path / "nowhere" / "page.html")])
    assert result.exit_code == 1 and "there is no folder" in result.output
