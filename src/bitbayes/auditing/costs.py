"""What bitbayes costs, in seconds and relative to a plain forward pass.

The time of a single short run is mostly chance, and the first run also loads code. So short runs are
repeated, and the median counts. On a CPU, ratios are of processor time and not of wall-clock time, so that
they do not depend on other programs.
"""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

ENOUGH_SECONDS = 0.4  # a step is repeated until its runs take this long
MOST_RUNS = 15
FEWEST_RUNS = 3  # of steps that take less than `ENOUGH_SECONDS`
# In seconds. On Windows processor time advances in steps of 16 ms, so that a short pass would take 0.
COARSEST_CLOCK = 0.0001


class Duration(NamedTuple):
    """A duration, or a time since some start: wall-clock seconds, and seconds of work.

    The work is the processor time of all cores. On a GPU, or if that clock is coarse, it is wall-clock time.
    """

    seconds: float
    work: float

    def minus(self, other: "Duration") -> "Duration":
        """Return the difference of two durations."""
        return Duration(self.seconds - other.seconds, self.work - other.work)


def now(device: torch.device) -> Duration:
    """Return the current time, after all running kernels have ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    clock = time.perf_counter()
    fine = time.get_clock_info("process_time").resolution <= COARSEST_CLOCK
    return Duration(clock, time.process_time() if device.type == "cpu" and fine else clock)


def duration_of(work: Callable[[], object], device: torch.device) -> Duration:
    """Return the duration of one run of `work`."""
    start = now(device)
    work()
    return now(device).minus(start)


def median_duration(first: Duration, again: Callable[[], Duration]) -> Duration:
    """Return the median duration of several runs, or that of the first one if it was long.

    Args:
        first: the duration of a first run, which also loaded code.
        again: makes another run and returns its duration.
    """
    if first.seconds >= ENOUGH_SECONDS:
        return first
    runs: list[Duration] = []
    while _needs_more(runs):
        runs.append(again())
    return _median(runs)


def durations_in_turns(
    one: Callable[[], object], other: Callable[[], object], device: torch.device
) -> tuple[Duration, Duration]:
    """Return the durations of two pieces of work. They run in turns, so that other programs slow both."""
    ones: list[Duration] = []
    others: list[Duration] = []
    while _needs_more(ones) or _needs_more(others):
        ones.append(duration_of(one, device))
        others.append(duration_of(other, device))
    return _median(ones), _median(others)


def _needs_more(runs: list[Duration]) -> bool:
    if len(runs) < FEWEST_RUNS:
        return True
    return sum(run.seconds for run in runs) < ENOUGH_SECONDS and len(runs) < MOST_RUNS


def _median(runs: list[Duration]) -> Duration:
    seconds, work = zip(*runs, strict=True)
    return Duration(statistics.median(seconds), statistics.median(work))
