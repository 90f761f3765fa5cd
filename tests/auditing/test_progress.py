import pytest

from bitbayes.auditing.progress import ProgressBars, say_nothing, shown


def test_bars_are_for_terminals_and_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    with shown(None) as report:
        assert report is say_nothing
    with shown(True) as report:
        assert isinstance(report, ProgressBars)
    with shown(False) as report:
        assert report is say_nothing
    with shown(print) as report:
        assert report is print
    with monkeypatch.context() as without:
        without.setattr("sys.stderr", None)
        with shown(None) as report:
            assert report is say_nothing
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with shown(None) as report:
        assert isinstance(report, ProgressBars)


def test_a_notebook_has_bars_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    monkeypatch.setattr("bitbayes.auditing.progress.in_notebook", lambda: True)
    bars = []

    class Bar:
        def __init__(self, total: int) -> None:
            self.total, self.progress = total, 0
            bars.append(self)

        def display(self) -> None:
            pass

    monkeypatch.setattr("IPython.display.ProgressBar", Bar)
    with shown(None) as report:
        report("Fitting", 0, None)  # nothing can be shown yet
        for step in [(0, 2), (2, 2)]:
            report("Fitting", *step)
        report("Tuning", 1, 4)
    assert [(bar.progress, bar.total) for bar in bars] == [(2, 2), (1, 4)]


def test_there_is_one_bar_for_each_stage() -> None:
    with shown(True) as report:
        assert isinstance(report, ProgressBars)
        for step in [(0, 2), (1, 2), (1, 2), (2, 2)]:
            report("Fitting", *step)
        for step in [(0, 4), (3, 4), (1, 1)]:
            report("Tuning", *step)
        assert report.stage == "Tuning"
    tasks = [(task.description, task.completed, task.total) for task in report.progress.tasks]
    assert tasks == [("Fitting", 2, 2), ("Tuning", 1, 1)]
