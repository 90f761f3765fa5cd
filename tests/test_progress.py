"""Progress bars: where they are shown, and what they say."""

import sys
from types import SimpleNamespace

import pytest

from bitbayes import progress
from bitbayes.progress import Progress, in_notebook, track


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by half a second each time it is looked at."""
    now = iter(range(10_000))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now) / 2))


@pytest.fixture
def notebook(monkeypatch):
    """A notebook's IPython, which keeps the states of the bars that it shows: (steps done, all steps)."""
    shown = []

    class Bar:
        def __init__(self, total):
            self.total, self.done = total, 0

        def display(self):
            shown.append((self.done, self.total))

        progress = property(lambda self: self.done, lambda self, done: shown.append((done, self.total)))

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(ProgressBar=Bar))
    return shown


def test_a_notebook_is_an_ipython_with_a_kernel(monkeypatch, notebook):
    assert in_notebook()
    terminal = SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()


def test_a_notebook_has_ipythons_bar_which_ends_full(notebook, clock, capsys):
    assert list(track(range(6), "fitting")) == [*range(6)]
    assert notebook[0] == (0, 6) and notebook[-1] == (6, 6)
    assert all(0 <= done <= 6 for done, _ in notebook)
    assert capsys.readouterr().err == ""


def test_a_notebook_shows_no_bar_for_an_unknown_number_of_steps(notebook, clock):
    assert list(track((step for step in range(6)), "fitting")) == [*range(6)]
    assert notebook == []


def test_what_is_over_at_once_shows_nothing(notebook):
    assert list(track(range(6), "fitting")) == [*range(6)]
    assert notebook == []


def test_it_is_shown_nowhere_if_not_wanted(notebook, clock):
    assert list(track(range(6), "fitting", show=False)) == [*range(6)]
    assert notebook == []


def test_a_terminal_has_a_bar(monkeypatch, capsys, clock):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(track(range(6), "fitting", show=True)) == [*range(6)]
    assert "fitting" in capsys.readouterr().err


def test_a_bar_is_gone_at_the_end_and_after_an_error(clock):
    def failing():
        yield from range(5)
        raise ZeroDivisionError

    stopped = []
    with Progress("fitting", 4, True) as bar:
        for _ in range(3):
            bar.advance()
        stop = bar.stop
        bar.stop = lambda: (stop(), stopped.append(bar.done))
    assert stopped == [3]
    with pytest.raises(ZeroDivisionError):
        list(track(failing(), "fitting", show=True))


def test_a_process_without_stderr_has_no_bar(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    assert list(track(range(3), "Fitting")) == [0, 1, 2]
