"""Interrupt fits and predictions at random moments, as Ctrl-C does, and look at what is left of the model.

    python benchmarks/faults/interrupts.py [--count 2000] [--seed 0]

A timer raises `KeyboardInterrupt` in the main thread after a random time. A failure is a model that has other
modes, hooks, parameters, buffers or gradients than before, or a `Laplace` that then predicts something else.
"""

import argparse
import random
import signal
import time
from collections.abc import Callable
from functools import partial

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


ALL = {"layers": "all"}
DRAWN = {"layers": "all", "predictive": "sampled_networks", "residual": False}
ACTIONS = {
    "fit": lambda bayes, x, y: bayes.fit([(x, y)]),
    "tune": lambda bayes, x, y: bayes.tune([(x, y)]),
    "predict": lambda bayes, x, y: bayes.predict_proba(x),
}
CASES = {
    f"{layers}: {name}": (settings, action)
    for layers, settings in {"last layer": {}, "all layers": ALL, "drawn networks": DRAWN}.items()
    for name, action in ACTIONS.items()
} | {"last layer: certify": ({}, lambda bayes, x, y: bayes.certify(x))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    signal.signal(signal.SIGALRM, interrupt)
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    for name, (settings, action) in CASES.items():
        bayes, interrupted, failed = None, 0, 0
        for _ in range(options.count):
            if bayes is None:  # a new model, at the beginning and after a failure
                torch.manual_seed(options.seed)
                bayes = bb.Laplace(Net(), prior_variance=0.1, **settings).fit([(x, y)])
                action(bayes, x, y)
                done = bayes.settings  # to which `tune` comes each time
                begun = time.perf_counter()
                action(bayes, x, y)
                length = time.perf_counter() - begun
            before, numbers, expected = state(bayes.model), bayes.settings, answer(bayes, x)
            seconds = chance.uniform(1e-5, 1.2 * length)
            interrupted += not finishes(partial(action, bayes, x, y), seconds)
            if not (state(bayes.model) == before and sound(bayes, x, numbers, done, expected)):
                failed, bayes = failed + 1, None
        print(f"{name:<24} {interrupted:>6} interrupted {failed:>6} failed", flush=True)


def sound(bayes: bb.Laplace, x: torch.Tensor, before: object, after: object, expected: torch.Tensor) -> bool:
    """Whether it has the numbers of before or of after, and no mixture, and predicts what it did."""
    if bayes.settings == before:
        return torch.equal(answer(bayes, x), expected)
    return bayes.settings == after


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def finishes(work: Callable[[], object], seconds: float) -> bool:
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
        [each.tolist() for each in tensors],
        [(each.training, len(each._forward_hooks), len(each._forward_pre_hooks)) for each in model.modules()],
    )


if __name__ == "__main__":
    main()
