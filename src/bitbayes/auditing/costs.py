"""What bitbayes costs, in seconds and relative to a plain forward pass.

A single short run is mostly chance: the first one loads code. So a run that is short is repeated, and the
median counts. Ratios on a CPU are of its own time, not of the clock's, so that they do not depend on what
else the machine does.
"""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

ENOUGH_SECONDS = 0.4  # in which a step is repeated
MOST_RUNS = 15
FEWEST_RUNS = 3  # of steps that take less than `ENOUGH_SECONDS`
# On Windows the time of a process advances in steps of 16 ms: a short pass would take no time at all.
COARSEST_CLOCK = 0.0001


class Taken(NamedTuple):
    """What something took: seconds by the clock, and seconds of work.

    The work is the time of the process on all cores. On a GPU, or if that time is coarse, it is the clock's.
    """

    seconds: float
    work: float

    def less(self, other: "Taken") -> "Taken":
        """Return what remains without a part."""
        return Taken(self.seconds - other.seconds, self.work - other.work)


def now(device: torch.device) -> Taken:
    """Return the time of now, once all kernels have ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    clock = time.perf_counter()
    fine = time.get_clock_info("process_time").resolution <= COARSEST_CLOCK
    return Taken(clock, time.process_time() if device.type == "cpu" and fine else clock)


def measured(work: Callable[[], object], device: torch.device) -> Taken:
    """Return what one run of `work` takes."""
    begun = now(device)
    work()
    return now(device).less(begun)


def repeated(first: Taken, again: Callable[[], Taken]) -> Taken:
    """Return the median of what several runs take.

    Args:
        first: what the first run took, which was not for measuring. It counts only if it was long.
        again: makes another run and returns what it took.
    """
    if first.seconds >= ENOUGH_SECONDS:
        return first
    runs: list[Taken] = []
    while _needs_more(runs):
        runs.append(again())
    return _median(runs)


def side_by_side(
    one: Callable[[], object], other: Callable[[], object], device: torch.device
) -> tuple[Taken, Taken]:
    """Return what two pieces of work take. They take turns, so that both see the same machine."""
    ones: list[Taken] = []
    others: list[Taken] = []
    while _needs_more(ones) or _needs_more(others):
        ones.append(measured(one, device))
        others.append(measured(other, device))
    return _median(ones), _median(others)


def _needs_more(runs: list[Taken]) -> bool:
    if len(runs) < FEWEST_RUNS:
        return True
    return sum(run.seconds for run in runs) < ENOUGH_SECONDS and len(runs) < MOST_RUNS


def _median(runs: list[Taken]) -> Taken:
    seconds, work = zip(*runs, strict=True)
    return Taken(statistics.median(seconds), statistics.median(work))
