"""Each script in benchmarks/faults still runs: names that it uses may have moved."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "benchmarks/faults"
# As few tries as a script takes. `mutants.py` runs the tests themselves.
ARGUMENTS = {
    "certificates": ("--networks", "2"),
    "interrupts": ("--count", "2"),
    "killed_fits": ("--count", "3"),
    "kills": ("--count", "3"),
    "memory": ("--count", "10"),
    "mutated_files": ("--count", "20"),
    "probabilities": ("--rows", "2000"),
    "threads": ("--minutes", "0.01"),
}


def test_every_script_is_tried():
    assert {each.stem for each in FAULTS.glob("*.py")} == {*ARGUMENTS, "mutants"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_script_runs(name):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FAULTS / f"{name}.py"), *ARGUMENTS[name]]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout, done.stderr
