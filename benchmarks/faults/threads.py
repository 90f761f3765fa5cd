"""Predict from many threads with one `Laplace` and one model, and compare every row with that of one thread.

    python benchmarks/faults/threads.py [--minutes 10] [--threads 8]

Last layer, all layers, drawn networks and the drop-in share one model in training mode, with batch norm and
dropout, while its own layers are called as well. A failure is a wrong row, a changed parameter, buffer, mode
or hook, or an exception. The memory of the process is printed at the start and at the end.
"""

import argparse
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

import bitbayes as bb


class Net(nn.Module):
    """A small convolutional network with batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = torch.randn(60, 1, 8, 8), torch.arange(60) % 3
    model = Net()
    inputs = [scale * x[:12] for scale in (0.1, 1.0, 10.0, 1000.0)]
    works = predictions(model, x, y) | {
        "the model's layers": lambda x: model.head(model.body[0](x).flatten(1))
    }
    expected = {name: [work(each).detach() for each in inputs] for name, work in works.items()}
    before, modes = tensors(model), [module.training for module in model.modules()]
    rows, wrong, errors = Counter(), Counter(), Counter()
    print(f"{options.threads} threads, {options.minutes:g} minutes, {memory():.0f} MB", flush=True)
    end = time.monotonic() + 60 * options.minutes

    def run(seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < end:
            name, i = chance.choice([*works]), chance.randrange(len(inputs))
            try:
                with torch.no_grad():
                    found = works[name](inputs[i])
                wrong[name] += int((found != expected[name][i]).any(1).sum())
            except Exception as error:
                errors[f"{name}: {type(error).__name__}: {error}"] += 1
            rows[name] += len(inputs[i])

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in works:
        print(f"{name:<20} {rows[name]:>10,} rows {wrong[name]:>6} wrong")
    same = tensors(model) == before and [module.training for module in model.modules()] == modes
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    print(f"exceptions: {dict(errors) or 'none'}")
    print(f"the model: {'unchanged' if same and not hooks else 'CHANGED'}; {memory():.0f} MB")


def predictions(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Predictions of each kind, which give the same rows each time."""
    last = bb.Laplace(model).fit([(x, y)]).tune([(x, y)])
    everything = bb.Laplace(model, layers="all", prior_variance=0.01).fit([(x, y)])
    drawn = bb.Laplace(model, layers="all", prior_variance=0.01, predictive="sampled_networks").fit([(x, y)])

    def networks(inputs: Tensor) -> Tensor:
        return drawn.predict_proba(inputs, samples=3, generator=torch.Generator().manual_seed(0))

    return {
        "last layer": last.predict_proba,
        "drop-in": last,
        "all layers": everything.predict_proba,
        "drawn networks": networks,
    }


def tensors(model: nn.Module) -> object:
    """The parameters and buffers: which objects they are, and their values."""
    every = (*model.parameters(), *model.buffers())
    return [(id(each), type(each), each.requires_grad, each.tolist()) for each in every]


def memory() -> float:
    """The largest resident memory so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
