"""Run the page's mathematics. Node does it: the browser's is the same language."""

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bitbayes.explorer.page import MATHEMATICS, read_scripts


def evaluate(function, argument):
    """What a function of JavaScript returns. The package playwright brings a node of its own."""
    playwright = find_spec("playwright")
    places = [None, *([Path(playwright.origin).parent / "driver"] if playwright else [])]
    node = next(filter(None, (shutil.which("node", path=each) for each in places)), None)
    if node is None:
        pytest.skip("node is not installed")
    script = (
        f"{read_scripts(MATHEMATICS)}\nconsole.log(JSON.stringify(({function})({json.dumps(argument)})));"
    )
    result = subprocess.run([node, "-"], input=script, capture_output=True, text=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
