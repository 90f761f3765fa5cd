"""A progress bar for work that takes longer than a second, on terminals and in notebooks."""

import html
import sys
import time
from collections.abc import Iterable, Iterator
from operator import length_hint
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
# Seconds between two updates of a bar in a notebook: each of them is a message to the browser.
PAUSE = 0.25


class Bar(Protocol):
    """A progress bar."""

    def start(self) -> None:
        """Show it."""

    def advance(self) -> None:
        """Count one step."""

    def stop(self) -> None:
        """Show it no longer, or as it is at the end."""


def track(steps: Iterable[T], what: str, show: bool | None = None) -> Iterator[T]:
    """Yield from `steps`, and show a progress bar after the first second.

    Args:
        steps: any iterable. If it has a length, the bar shows the remaining time.
        what: the name of the work, beside the bar.
        show: True for always, False for never, None for "only on terminals and in notebooks".
    """
    notebook = in_notebook()
    if show is False or (show is None and not notebook and not on_terminal()):
        yield from steps
        return
    total = length_hint(steps) or None
    bar: Bar = NotebookBar(what, total) if notebook else TerminalBar(what, total)
    begun = time.monotonic()
    running = False
    try:
        for step in steps:
            yield step
            bar.advance()
            if not running and time.monotonic() - begun > 1:
                bar.start()
                running = True
    finally:
        if running:
            bar.stop()


def in_notebook() -> bool:
    """Return whether this code runs in a notebook: in an IPython shell that has a kernel."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


def on_terminal() -> bool:
    """Return whether stderr is a terminal. A process without a console may have no stderr at all."""
    return sys.stderr is not None and sys.stderr.isatty()


class TerminalBar:
    """A bar on stderr, by rich. It disappears at the end."""

    def __init__(self, what: str, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.progress.add_task(what, total=total)

    def start(self) -> None:
        self.progress.start()

    def advance(self) -> None:
        self.progress.advance(self.task)

    def stop(self) -> None:
        self.progress.stop()


class NotebookBar:
    """A bar as HTML in the output of a cell. Rich's own needs ipywidgets, this one only IPython.

    At the end it says how many steps there were and how long they took.
    """

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total, self.done = what, total, 0
        self.begun = self.shown = time.monotonic()
        self.handle: Any = None

    def start(self) -> None:
        from IPython.display import display

        self.handle = display(self, display_id=True)  # type: ignore[no-untyped-call]

    def advance(self) -> None:
        self.done += 1
        if self.handle is not None and time.monotonic() - self.shown > PAUSE:
            self.shown = time.monotonic()
            self.handle.update(self)

    def stop(self) -> None:
        self.handle.update(self)

    def __repr__(self) -> str:
        """Return the text for front ends without HTML."""
        seconds = time.monotonic() - self.begun
        steps = f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"
        left = ""
        if self.total and 0 < self.done < self.total:
            left = f", about {seconds / self.done * (self.total - self.done):.0f} s left"
        return f"{self.what}: {steps} in {seconds:.0f} s{left}"

    def _repr_html_(self) -> str:
        value = "" if self.total is None else f' value="{self.done}" max="{self.total}"'
        text = html.escape(repr(self))
        return f'<progress aria-label="{html.escape(self.what)}"{value}></progress> {text}'
