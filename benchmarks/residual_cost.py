"""What the residual costs: predictions with it as ratios to predictions without it.

    python benchmarks/residual_cost.py [--device cpu] [--threads 2] [--repeat 7]

The paper's LeNet on images of 1×28×28 and ResNet-18 on 3×32×32, in batches of 128 and of 1,000. Each ratio is
a median: a prediction with the residual, and one without it before and after. On a CPU of its processor time,
so that other work on the machine does not count.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.toys import LeNet

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, for `paper`
from paper.resnet import resnet18

ROWS = (128, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {options.device}, {options.threads} thread(s)")
    for name, model, shape in (("LeNet", LeNet(), (1, 28, 28)), ("ResNet-18", resnet18(), (3, 32, 32))):
        for rows in ROWS:
            x = torch.rand(rows, *shape, device=options.device)
            plain, ratio = measure(model.to(options.device).eval(), x, options.repeat)
            print(f"{name:<10} {rows:>5} images {1e3 * plain:9.2f} ms without {ratio:8.3f} x", flush=True)


def measure(model: nn.Module, x: Tensor, repeat: int) -> tuple[float, float]:
    """Seconds of a prediction without the residual, and the ratio of one with it."""
    batch = [(x, torch.arange(len(x), device=x.device) % 10)]
    without, wide = (
        bb.Laplace(model, prior_variance=1.0, residual=each).fit(batch, progress=False)
        for each in (False, True)
    )
    for _ in range(2):  # what the first predictions compute once does not count
        without.predict_proba(x)
        wide.predict_proba(x)
    clock = time.perf_counter if x.is_cuda else time.process_time

    def seconds(bayes: bb.Laplace) -> float:
        begun = clock()
        bayes.predict_proba(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        return clock() - begun

    times, ratios = [], []
    for _ in range(repeat):
        before, own, after = (seconds(each) for each in (without, wide, without))
        times.append((before + after) / 2)
        ratios.append(own / times[-1])
    return statistics.median(times), statistics.median(ratios)


if __name__ == "__main__":
    main()
