"""What would be published: the files that are built, and what they say of themselves."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import bitbayes

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "bitbayes"
# What the build reads, beside the package itself.
READ = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md", "CITATION.cff")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with a wheel and a source distribution, built from a copy of the package."""
    if not find_spec("build"):
        pytest.skip("build is not installed: `make test` installs it")
    folder = tmp_path_factory.mktemp("release")
    for name in READ:
        shutil.copy(ROOT / name, folder)
    shutil.copytree(SOURCE, folder / "src" / "bitbayes", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "dist"


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name.startswith(f"bitbayes-{bitbayes.__version__}-py3-none-any")
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {f"bitbayes/{path.relative_to(SOURCE).as_posix()}" for path in files}
    assert {"bitbayes/py.typed", "bitbayes/auditing/page.html"} <= expected
    assert any(name.endswith(".npz") for name in expected)
    assert not expected - names
    assert not [name for name in names if not name.startswith(("bitbayes/", "bitbayes-"))]


@pytest.mark.slow
def test_the_source_distribution_has_package_licence_and_changelog(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "CITATION.cff", "src/bitbayes/py.typed"} <= names


@pytest.mark.slow
def test_the_package_index_would_take_them(built):
    if not find_spec("twine"):
        pytest.skip("twine is not installed: `make test` installs it")
    files = [str(path) for path in built.iterdir()]
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.count("PASSED") == 2, result.stdout + result.stderr


def test_the_version_is_written_in_one_place():
    text = bitbayes.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", text)
    assert f'"{text}"' not in (ROOT / "pyproject.toml").read_text()
    assert text not in (ROOT / "CITATION.cff").read_text()
    first = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert re.fullmatch(rf"{text} \((unreleased|\d{{4}}-\d\d-\d\d)\)", first)


def test_the_changelog_has_the_usual_sections():
    found = re.findall(r"^### (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found and {*found} <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_workflow_runs_all_checks_on_each_version_of_python():
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed: `make test` installs it")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"
    assert job["steps"][-1]["run"] == ".ci/run" and (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_the_hooks_before_a_commit_are_what_make_lint_runs():
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed: `make test` installs it")
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    lint = re.search(r"^lint: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    tools = re.findall(r"\$\(BIN\)/(ruff \w+|mypy)", lint[1])
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in repo["hooks"]]
    assert repo["repo"] == "local" and [each.split(" --")[0] for each in entries] == tools


def test_the_citation_names_the_software_and_the_paper():
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed: `make test` installs it")
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found["cff-version"] == "1.2.0" and found["message"] and found["title"].startswith("bitbayes")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert found["authors"] == project["authors"] == [{"name": "The bitbayes developers"}]
    assert found["license"] == project["license"] == "MIT"
    (paper,) = found["references"]
    assert paper["title"].startswith("Being Bayesian, Even Just a Bit") and paper["year"] == 2020
    assert [author["family-names"] for author in paper["authors"]] == ["Kristiadi", "Hein", "Hennig"]
