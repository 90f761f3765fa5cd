"""Progress bars: where they are shown, and what they say."""

import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest

from bitbayes import progress
from bitbayes.progress import Progress, bar_console, in_notebook, track


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by half a second each time it is looked at."""
    now = iter(range(10_000))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now) / 2))


@pytest.fixture
def notebook(monkeypatch):
    """A notebook's IPython, without ipywidgets."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(progress, "find_spec", lambda name: None)


def test_a_notebook_is_an_ipython_with_a_kernel(monkeypatch, notebook):
    assert in_notebook()
    terminal = SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()


def test_a_notebook_without_widgets_has_a_bar_as_a_terminal_has(notebook, clock, capsys):
    assert bar_console().is_terminal and not bar_console().is_jupyter
    assert list(track(range(6), "fitting")) == [*range(6)]
    shown = capsys.readouterr()
    assert "fitting" in shown.err and "/6" in shown.err and shown.out == ""


def test_a_notebook_with_widgets_has_rich_s_own(monkeypatch, notebook):
    monkeypatch.setattr(progress, "find_spec", lambda name: ModuleSpec(name, None))
    assert not bar_console().is_terminal  # rich finds out by itself where it is


def test_what_is_over_at_once_shows_nothing(notebook, capsys):
    assert list(track(range(6), "fitting")) == [*range(6)]
    assert capsys.readouterr().err == ""


def test_it_is_shown_nowhere_if_not_wanted(notebook, clock, capsys):
    assert list(track(range(6), "fitting", show=False)) == [*range(6)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("steps, total", [(range(5), 5), ((step for step in range(5)), None)])
def test_a_bar_counts_all_steps_and_knows_how_many_there_are(steps, total, clock, monkeypatch):
    bars = []
    start = Progress._start
    monkeypatch.setattr(Progress, "_start", lambda self: start(self) or bars.append(self))
    assert list(track(steps, "fitting", show=True)) == [*range(5)]
    (bar,) = bars
    (task,) = bar.bar.tasks
    assert (task.description, task.completed, task.total) == ("fitting", 5, total)
    assert bar.bar.finished == (total is not None) and not bar.bar.live.is_started


def test_a_terminal_has_a_bar(monkeypatch, capsys, clock):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(track(range(6), "fitting", show=True)) == [*range(6)]
    assert "fitting" in capsys.readouterr().err


def test_a_bar_is_gone_at_the_end_and_after_an_error(clock):
    def failing():
        yield from range(5)
        raise ZeroDivisionError

    with Progress("fitting", 4, True) as bar:
        for _ in range(3):
            bar.advance()
        assert bar.bar.live.is_started
    assert not bar.bar.live.is_started
    with pytest.raises(ZeroDivisionError):
        list(track(failing(), "fitting", show=True))


def test_a_process_without_stderr_has_no_bar(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    assert list(track(range(3), "Fitting")) == [0, 1, 2]
