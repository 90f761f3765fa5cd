import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bitbayes.auditing.progress import NotebookBars, ProgressBars, say_nothing, shown


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


def test_a_notebook_has_one_bar_for_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    displayed: list[Any] = []

    def display(bar: Any, display_id: bool) -> Any:
        displayed.append(bar)
        return SimpleNamespace(update=lambda bar: None)

    module = ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("bitbayes.auditing.progress.in_notebook", lambda: True)
    with shown(None) as report:
        assert isinstance(report, NotebookBars)
        for step in [(0, 2), (1, 2), (1, 2), (2, 2)]:
            report("Fitting", *step)
        for step in [(0, 4), (3, 4), (1, 1)]:
            report("Tuning", *step)
    assert [(bar.what, bar.done, bar.total) for bar in displayed] == [("Fitting", 2, 2), ("Tuning", 1, 1)]
