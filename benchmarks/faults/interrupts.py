"""Interrupt fits and predictions at random moments, as Ctrl-C does, and look at what is left of the model.

    python benchmarks/faults/interrupts.py [--count 2000] [--seed 0]

A timer raises `KeyboardInterrupt` in the main thread after a random time. A failure is a model that has other
modes, hooks, parameters, buffers or gradients than before, or a `Laplace` that then predicts something else.
"""

import argparse
import copy
import random
import signal
import time

import torch
from torch import nn

import bitbayes as bb


class Net(nn.Module):
    """Small, in training mode, with a batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.drop = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.body(x)))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    signal.signal(signal.SIGALRM, interrupt)
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    model = Net()
    works = {}
    for name, settings in {
        "last layer": {},
        "all layers": {"layers": "all"},
        "drawn networks": {"layers": "all", "predictive": "weights", "residual": False},
    }.items():
        bayes = bb.Laplace(model, prior_variance=0.1, **settings).fit([(x, y)])
        works[f"{name}: fit"] = (bayes, lambda bayes=bayes: bayes.fit([(x, y)]))
        works[f"{name}: tune"] = (bayes, lambda bayes=bayes: bayes.tune([(x, y)]))
        works[f"{name}: predict"] = (bayes, lambda bayes=bayes: bayes.predict_proba(x))
    certified = bb.Laplace(model, prior_variance=0.1).fit([(x, y)])
    works["last layer: certify"] = (certified, lambda: certified.certify(x))
    for name, (bayes, work) in works.items():
        work()
        tuned = bayes._numbers()  # `tune` comes to the same numbers each time
        begun = time.perf_counter()
        work()
        length = time.perf_counter() - begun
        interrupted = failed = 0
        for _ in range(options.count):
            before, modes, numbers = state(model), [m.training for m in model.modules()], bayes._numbers()
            expected = answer(bayes, x)
            interrupted += not finishes(work, chance.uniform(1e-5, 1.2 * length))
            same = state(model) == before and [m.training for m in model.modules()] == modes
            same = same and bayes._numbers() in (numbers, tuned)  # and no mixture of both
            if bayes._numbers() == numbers:
                same = same and torch.equal(answer(bayes, x), expected)
            failed += not same
        print(f"{name:<24} {interrupted:>6} interrupted {failed:>6} failed", flush=True)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def finishes(work: object, seconds: float) -> bool:
    """Whether the work ended before it was interrupted."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        work()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return False
    return True


def answer(bayes: bb.Laplace, x: torch.Tensor) -> torch.Tensor:
    return bayes.predict_proba(x, method="pairwise")


def state(model: nn.Module) -> object:
    """All that a run could leave behind, to be compared."""
    tensors = (*model.parameters(), *model.buffers())
    return (
        [(id(each), type(each), each.requires_grad, each.grad) for each in tensors],
        [each.tolist() for each in copy.deepcopy(model).state_dict().values()],
        [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()],
    )


if __name__ == "__main__":
    main()
