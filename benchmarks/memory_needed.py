"""The memory that a fit says it needs, beside what fit, the first prediction and tune were seen to take.

    python benchmarks/memory_needed.py

On the CPU, each case in a process of its own: megabytes above those of the model and its plain pass.
"""

import argparse
import json
import subprocess
import sys
import warnings
from typing import Any

import torch
from torch import nn

import bitbayes as bb
from bitbayes.fitting.last_layer import COPIES, FIT_BYTES
from bitbayes.structures import CURVATURES
from timing import peak_megabytes

# structure, classes, features, points, dtype
CASES = (
    ("lowrank", 20_000, 256, 1024, "float32"),
    ("lowrank", 20_000, 256, 1024, "float64"),
    ("lowrank", 10_000, 2048, 1024, "float32"),
    ("kron", 1000, 2048, 4096, "float32"),
    ("kron", 2000, 256, 4096, "float32"),
    ("diag", 4000, 2048, 1024, "float32"),
    ("full", 10, 200, 1024, "float32"),
    ("isotropic", 4000, 2048, 1024, "float32"),
)
BATCH, VALIDATION = 256, 128


def measure(structure: str, classes: int, width: int, points: int, dtype: str) -> dict[str, Any]:
    """Megabytes after each step."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps(nn.Linear(8, 70), structure if structure != "full" else "kron", torch.randn(64, 8), 64)  # libraries
    head = nn.Linear(width, classes).to(getattr(torch, dtype))
    x = torch.randn(BATCH, width, dtype=head.weight.dtype)
    with torch.no_grad():
        head(x)
    before = peak_megabytes()
    found = {name: peak - before for name, peak in steps(head, structure, x, points).items()}
    needed = CURVATURES[structure].bytes_needed(classes, width + 1) + COPIES * FIT_BYTES
    return {"needed": needed / 2**20, **found}


def steps(head: nn.Linear, structure: str, x: torch.Tensor, points: int) -> dict[str, float]:
    labels = torch.arange(len(x)) % head.out_features
    bayes = bb.Laplace(head, structure=structure, residual=False)
    found = {}
    bayes.fit([(x, labels)] * (points // len(x)))
    found["fit"] = peak_megabytes()
    bayes.predict_proba(x[:64])
    found["predict"] = peak_megabytes()
    bayes.tune([(x[:VALIDATION], labels[:VALIDATION])])
    found["tune"] = peak_megabytes()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", type=int, help="one case by its number, as one line of JSON")
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(measure(*CASES[options.case])))
        return
    for number, case in enumerate(CASES):
        words = [sys.executable, __file__, "--case", str(number)]
        found = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)
        shown = "  ".join(f"{name} {value:,.0f} MB" for name, value in found.items())
        print(f"{' '.join(map(str, case)):<40} {shown}", flush=True)


if __name__ == "__main__":
    main()
