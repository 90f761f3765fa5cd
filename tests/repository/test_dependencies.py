"""The lower bounds that the package asks for are those that `make test-lowest` installs."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("lint", "release", "docs", "browser")  # what developers run, and no part of the package needs


def lower_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *(each for name in extras if name not in TOOLS for each in extras[name]),
    ]
    return dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", each).groups() for each in asked)


def pins(file):
    return dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / file).read_text(), re.MULTILINE))


def test_every_lower_bound_is_run():
    bounds = lower_bounds()
    del bounds["torch"]  # of one version alone there is a build for the CPU
    lowest = pins("constraints-lowest.txt")
    assert lowest.pop("torch") == pins("constraints.txt")["torch"]
    assert lowest == bounds
