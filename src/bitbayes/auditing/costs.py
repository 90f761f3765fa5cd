"""What bitbayes costs, in seconds and relative to a plain forward pass.

A single short run is mostly chance: the first one loads code, and others share the machine. So a run that is
short is repeated, and the median counts.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

ENOUGH_SECONDS = 0.4  # in which a step is repeated
MOST_RUNS = 15
FEWEST_RUNS = 3  # of steps that take less than `ENOUGH_SECONDS`


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one run of `work`, once all kernels have ended."""
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def repeated(first: float, again: Callable[[], float]) -> float:
    """Return the median of the seconds of several runs.

    Args:
        first: the seconds of the first run, which was not for measuring. It counts only if it was long.
        again: makes another run and returns its seconds.
    """
    if first >= ENOUGH_SECONDS:
        return first
    runs: list[float] = []
    while len(runs) < FEWEST_RUNS or (sum(runs) < ENOUGH_SECONDS and len(runs) < MOST_RUNS):
        runs.append(again())
    return statistics.median(runs)


def side_by_side(
    one: Callable[[], Any], other: Callable[[], Any], device: torch.device
) -> tuple[float, float]:
    """Return the median seconds of two pieces of work. They take turns, so that both see the same machine."""
    pairs: list[tuple[float, float]] = []
    while len(pairs) < FEWEST_RUNS or (sum(map(sum, pairs)) < 2 * ENOUGH_SECONDS and len(pairs) < MOST_RUNS):
        pairs.append((seconds_of(one, device), seconds_of(other, device)))
    ones, others = zip(*pairs, strict=True)
    return statistics.median(ones), statistics.median(others)
