import pytest
import torch

from bitbayes.auditing import costs


def test_short_runs_are_repeated_and_the_median_counts() -> None:
    runs = iter([0.1, 9.0, 0.2, 0.3, 0.4])
    assert costs.repeated(0.01, lambda: next(runs)) == 0.2  # three runs: 0.1, 9.0 and 0.2


def test_long_runs_are_not_repeated() -> None:
    def again() -> float:
        raise AssertionError

    assert costs.repeated(costs.ENOUGH_SECONDS, again) == costs.ENOUGH_SECONDS


def test_two_pieces_of_work_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    clock = iter(range(100))
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(clock))
    found = costs.side_by_side(lambda: turns.append("a"), lambda: turns.append("b"), torch.device("cpu"))
    assert turns == ["a", "b"] * costs.FEWEST_RUNS
    assert found == (1, 1)
