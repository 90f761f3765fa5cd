from types import SimpleNamespace

import pytest
import torch

from bitbayes.auditing import costs
from bitbayes.auditing.costs import Duration


def test_short_runs_are_repeated_and_the_median_counts() -> None:
    runs = iter([Duration(0.1, 3.0), Duration(9.0, 1.0), Duration(0.2, 2.0), Duration(0.3, 4.0)])
    # Three runs are enough, since they take more than `ENOUGH_SECONDS` together.
    assert costs.median_duration(Duration(0.01, 0.01), lambda: next(runs)) == Duration(0.2, 2.0)


def test_long_runs_are_not_repeated() -> None:
    def again() -> Duration:
        raise AssertionError

    long = Duration(costs.ENOUGH_SECONDS, 0.1)
    assert costs.median_duration(long, again) == long


def test_two_pieces_of_work_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    clock = iter(range(100))
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(clock))
    found = costs.durations_in_turns(
        lambda: turns.append("a"), lambda: turns.append("b"), torch.device("meta")
    )
    assert turns == ["a", "b"] * costs.FEWEST_RUNS
    assert found == (Duration(1, 1), Duration(1, 1))


def test_on_a_cpu_work_is_the_time_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs.time, "perf_counter", lambda: 7.0)
    monkeypatch.setattr(costs.time, "process_time", lambda: 5.0)
    assert costs.now(torch.device("cpu")) == Duration(7.0, 5.0)
    assert costs.now(torch.device("meta")) == Duration(7.0, 7.0)
    # As on Windows. A pass of no work would be divided by.
    monkeypatch.setattr(costs.time, "get_clock_info", lambda name: SimpleNamespace(resolution=0.015625))
    assert costs.now(torch.device("cpu")) == Duration(7.0, 7.0)
