"""The notebooks run, and what is committed is small and tells nothing of the machine that ran them."""

import json
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEEDS = {"your_own_model": "transformers"}
LARGEST = 450_000  # bytes


def runner():
    pytest.importorskip("nbclient", reason="nbclient is not installed: `make test` installs it")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: `make test` installs it")
    spec = spec_from_file_location("run_notebooks", ROOT / "scripts" / "run_notebooks.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_three():
    names = [path.stem for path in NOTEBOOKS]
    assert names == ["digits_in_five_minutes", "theory_on_the_toy", "your_own_model"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_was_run_and_is_small(path):
    text = path.read_text("utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert len(text) < LARGEST
    assert [cell["execution_count"] for cell in cells] == [
        *range(1, len(cells) + 1)
    ]  # in order, from the top
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert "site-packages" not in text and str(Path.home()) not in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, monkeypatch):
    needed = NEEDS.get(path.stem)
    if needed and not find_spec(needed):
        pytest.skip(f"{needed} is not installed: `make test` installs it")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = runner().run(path)  # raises if a cell fails
    texts = [str(output.get("text", "")) for cell in found.cells for output in cell.get("outputs", [])]
    assert "Traceback" not in "".join(texts)


PROGRESS = """
import time
from bitbayes.progress import track
for _ in track(range(8), "counting <steps>"):
    time.sleep(0.25)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_shows_progress(tmp_path):
    """With IPython alone: rich would ask for ipywidgets."""
    runner()
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PROGRESS)])
    path = tmp_path / "progress.ipynb"
    nbformat.write(notebook, path)
    (cell,) = runner().run(path).cells
    (output,) = cell.outputs  # one output, that was updated, and no warning
    assert output.data["text/plain"].endswith("8/8")
    assert "max='8' value='8'" in output.data["text/html"]
    assert "ipywidgets" not in sys.modules
