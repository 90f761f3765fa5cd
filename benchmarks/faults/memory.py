"""The memory of a process over many predictions: it must not grow.

    python benchmarks/faults/memory.py [--count 10000]

The resident memory after the first tenth of the predictions, and at the end.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import bitbayes as bb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = torch.randn(60, 20), torch.arange(60) % 3
    model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Dropout(), nn.Linear(50, 3))
    for name, settings in {
        "last layer": {},
        "all layers": {"layers": "all"},
        "drawn networks": {"layers": "all", "predictive": "sampled_networks"},
    }.items():
        bayes = bb.Laplace(model, prior_variance=0.1, **settings).fit([(x, y)])
        for _ in range(options.count // 10):
            bayes.predict_proba(x)
        begun = resident()
        for _ in range(options.count - options.count // 10):
            bayes.predict_proba(x)
        print(f"{name:<16} {options.count:,} predictions: {begun:.1f} MB → {resident():.1f} MB", flush=True)


def resident() -> float:
    """The resident memory now, in MB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


if __name__ == "__main__":
    main()
