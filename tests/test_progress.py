"""Progress bars: where they are shown, and what they say."""

import sys
from types import SimpleNamespace

import pytest

from bitbayes import progress
from bitbayes.progress import NotebookBar, in_notebook, track


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by half a second each time it is looked at."""
    now = iter(range(10_000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now) / 2)


@pytest.fixture
def notebook(monkeypatch):
    """A notebook's IPython, which keeps what is displayed and updated."""
    shown = []
    handle = SimpleNamespace(update=lambda bar: shown.append(repr(bar)))

    def display(bar, display_id):
        shown.append(repr(bar))
        return handle

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
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


def test_a_notebook_shows_a_bar_that_ends_with_the_number_of_steps(notebook, clock):
    assert list(track(range(6), "fitting")) == [*range(6)]
    assert notebook[0].startswith("fitting: ") and "left" in notebook[0]
    assert notebook[-1].startswith("fitting: 6 of 6 in ") and "left" not in notebook[-1]


def test_what_is_over_at_once_shows_nothing(notebook):
    assert list(track(range(6), "fitting")) == [*range(6)]
    assert notebook == []


def test_it_is_shown_nowhere_if_not_wanted(notebook, clock):
    assert list(track(range(6), "fitting", show=False)) == [*range(6)]
    assert notebook == []


def test_without_a_length_there_is_no_time_left(notebook, clock):
    list(track((step for step in range(5)), "fitting"))
    assert notebook[-1].startswith("fitting: 5 in ")
    assert '<progress aria-label="fitting"></progress>' in NotebookBar("fitting", None)._repr_html_()


def test_a_terminal_has_a_bar_by_rich(monkeypatch, capsys, clock):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(track(range(6), "fitting", show=True)) == [*range(6)]
    assert "fitting" in capsys.readouterr().err


def test_the_last_steps_are_shown_however_quick_they_were(notebook):
    bar = NotebookBar("fitting", 3)
    bar.start()
    for _ in range(3):
        bar.advance()  # within one pause: no update is sent
    assert notebook == ["fitting: 0 of 3 in 0 s"]
    bar.stop()
    assert notebook[1:] == ["fitting: 3 of 3 in 0 s"]


def test_a_process_without_stderr_has_no_bar(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    assert list(track(range(3), "Fitting")) == [0, 1, 2]
