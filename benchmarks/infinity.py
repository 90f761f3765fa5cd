"""What `limit` and `certify` cost: in forward passes (last layer) and in linearised predictions (all layers).

    python benchmarks/infinity.py [--threads N] [--repeat N] [--rows N] [--layers last|all]

Slopes are computed in float64, whose forward pass costs two to three of float32 on most CPUs: both ratios are
printed. All times are the best of several interleaved runs in this process; on a CPU of its processor time,
so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.toys import LeNet

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, for `paper`
from paper.resnet import resnet18


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", type=int, help="images at once; by default 256 and 32, all layers 64 and 8")
    parser.add_argument("--layers", choices=("last", "all"), nargs="*", default=("last", "all"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"torch {torch.__version__}, {device}, {options.threads} thread(s)")
    networks = {"LeNet": (LeNet(), (1, 28, 28), 256), "ResNet-18": (resnet18(), (3, 32, 32), 32)}
    for layers in options.layers:
        unit = "forward" if layers == "last" else "linearised"
        header = (unit, "in float64", "limit", "certify", f"limit/{unit}", "limit/float64")
        print(f"{layers + ' layer(s)':34}" + "".join(f"{name:>17}" for name in header))
        for name, (model, shape, rows) in networks.items():
            rows = options.rows or (rows if layers == "last" else rows // 4)
            x = torch.rand(rows, *shape, device=device)
            for structure in ("kron",) if layers == "last" else ("kron", "diag"):
                times = measure(model.to(device).eval(), x, options.repeat, layers, structure)
                shown = "".join(f"{1000 * value:14.1f} ms" for value in times)
                one, double, limit, _ = times
                print(
                    f"{f'{name}, {structure}, {rows} images':34}{shown}{limit / one:17.2f}"
                    f"{limit / double:17.2f}",
                    flush=True,
                )


def measure(model: nn.Module, x: Tensor, repeat: int, layers: str, structure: str) -> list[float]:
    """Seconds of the unit, of the same in float64, of `limit` and of `certify`."""
    batch = [(x, torch.arange(len(x), device=x.device) % 10)]
    bayes = bb.Laplace(model, layers=layers, structure=structure).fit(batch, progress=False)
    exact, exact_x = copy.deepcopy(model).double(), x.double()
    units: list[Callable[[], object]] = [lambda: model(x), lambda: exact(exact_x)]
    if layers == "all":
        double = bb.Laplace(exact, layers=layers, structure=structure)
        double.fit([(exact_x, batch[0][1])], progress=False)
        units = [lambda: bayes.predict_proba(x), lambda: double.predict_proba(exact_x)]
    runs = [*units, lambda: bayes.limit(x), lambda: bayes.certify(x)]
    clock = time.perf_counter if x.is_cuda else time.process_time
    best = [float("inf")] * len(runs)
    with torch.no_grad():
        for turn in range(repeat + 1):
            for i, run in enumerate(runs):
                start = clock()
                run()
                if x.is_cuda:
                    torch.cuda.synchronize()
                if turn:  # the first turn warms up
                    best[i] = min(best[i], clock() - start)
    return best


if __name__ == "__main__":
    main()
