"""What the tests run in."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Runs conftest.py up to the first import of torch.
PROBE = """
import os, sys
sys.modules["torch"] = None
try:
    import conftest
except ImportError:
    print(os.environ["ONEDNN_MAX_CPU_ISA"])
"""


def test_products_in_bfloat16_do_without_amx():
    assert os.environ["ONEDNN_MAX_CPU_ISA"]


def test_the_instructions_are_chosen_before_torch_is_imported():
    """oneDNN reads the variable once, when torch loads: to set it later has no effect."""
    environment = {key: value for key, value in os.environ.items() if key != "ONEDNN_MAX_CPU_ISA"}
    command = [sys.executable, "-c", PROBE]
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["AVX512_CORE_BF16"]
