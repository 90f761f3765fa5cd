"""The rows of docs/mistakes.md: each mistake gets the words that the page shows."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import bitbayes as bb

PAGE = (Path(__file__).parents[2] / "docs" / "mistakes.md").read_text("utf-8")
ROWS = re.findall(r"^\| ([^|`]*(?:`[^`|]+`)?[^|]*) \| `([^|]+)` \| ([^|]+) \|$", PAGE, re.MULTILINE)


def test_every_row_of_the_page_is_run():
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| mistake")]
    assert len(ROWS) == len(lines) >= 30


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, kind in [*bb.structures.CURVATURES.items()]:  # those of `paper`, if another test imported it
        if not kind.__module__.startswith("bitbayes."):
            monkeypatch.delitem(bb.structures.CURVATURES, name)
    (lines,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {"bb": bb, "copy": copy, "nn": nn, "Path": Path, "torch": torch}
    exec(lines, names)
    return names


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("mistake, code, result", ROWS, ids=[row[0] for row in ROWS])
def test_a_mistake_gets_what_the_page_says(session, mistake, code, result):
    if result.startswith("no error"):
        exec(code, session)
        return
    kind, words = re.search(r"`(\w+Error): (.*)`$", result).groups()
    with pytest.raises(Exception) as caught:
        exec(code, session)
    pattern = ".*".join(re.escape(part.strip()) for part in words.split("…"))
    assert isinstance(caught.value, bb.errors.BitbayesError) != ("own" in result.split("`")[0])
    assert type(caught.value).__name__ == kind
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)
