"""What `limit` and `certify` cost, as multiples of a forward pass of the same network on the same batch.

    python benchmarks/infinity.py [--threads N] [--repeat N]

Slopes are computed in float64, whose forward pass costs two to three of float32 on most CPUs: both ratios are
printed. All times are the best of several interleaved runs in this process.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.networks import LeNet, resnet18


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = {
        "LeNet, 256 images of 28 × 28": (LeNet(), torch.rand(256, 1, 28, 28)),
        "ResNet-18, 32 images of 32 × 32": (resnet18(), torch.rand(32, 3, 32, 32)),
    }
    print(f"torch {torch.__version__}, {device}, {options.threads} thread(s)")
    header = ("forward", "in float64", "limit", "certify", "limit/forward", "limit/float64")
    print(f"{'':34}" + "".join(f"{name:>15}" for name in header))
    for name, (model, x) in cases.items():
        forward, double, limit, certify = measure(model.to(device), x.to(device), options.repeat)
        times = "".join(f"{1000 * value:12.1f} ms" for value in (forward, double, limit, certify))
        print(f"{name:34}{times}{limit / forward:15.2f}{limit / double:15.2f}")


def measure(model: nn.Module, x: Tensor, repeat: int) -> list[float]:
    """Seconds of a forward pass, of one in float64, of `limit` and of `certify`."""
    model.eval()
    bayes = bb.Laplace(model).fit([(x, torch.arange(len(x), device=x.device) % 10)], progress=False)
    exact, exact_x = copy.deepcopy(model).double(), x.double()
    runs: list[Callable[[], object]] = [
        lambda: model(x),
        lambda: exact(exact_x),
        lambda: bayes.limit(x),
        lambda: bayes.certify(x),
    ]
    best = [float("inf")] * len(runs)
    with torch.no_grad():
        for turn in range(repeat + 1):
            for i, run in enumerate(runs):
                start = time.perf_counter()
                run()
                if x.is_cuda:
                    torch.cuda.synchronize()
                if turn:  # the first turn warms up
                    best[i] = min(best[i], time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
