"""Run the notebooks and keep their outputs in the files: `python scripts/run_notebooks.py`.

    python scripts/run_notebooks.py                  # all of notebooks/
    python scripts/run_notebooks.py --check NAME…    # only run them, and write nothing

The outputs are committed, so that people see them without running anything. Times of execution are not.
"""

import argparse
import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"
SECONDS = 300  # for one cell
# Where timm is installed without torchvision, as by `make test`, this makes `import timm` work all the same.
TIMM_ALONE = f"""
import sys
sys.path.append({str(FOLDER.parent / "tests")!r})
try:
    from with_timm import import_timm
    import_timm()
except BaseException:  # pytest's own, if there is no timm
    pass
"""
# tqdm, which other packages bring, asks for ipywidgets when it is imported. No notebook here needs these.
os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")


def run(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of all its cells. Raises if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(path.parent)}})
    with client.setup_kernel():
        client.kc.execute(TIMM_ALONE, silent=True)
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
            cell.metadata.pop("execution", None)
    # Without the version of Python, which would change the file each time.
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as digits_in_five_minutes")
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    paths = [FOLDER / f"{name}.ipynb" for name in given.names] or sorted(FOLDER.glob("*.ipynb"))
    for path in paths:
        found = run(path)
        if not given.check:
            nbformat.write(found, path)
        print(path.name)


if __name__ == "__main__":
    main()
