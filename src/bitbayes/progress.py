"""A progress bar for work that takes longer than a second: rich's on terminals, IPython's in notebooks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
# Seconds between two updates of a bar: in a notebook each of them is a message to the browser.
PAUSE = 0.25


class Progress:
    """A bar inside a `with` block. It appears after the first second; on terminals it is gone at the end.

    Args:
        what: the name of the work, beside the bar.
        total: the number of steps; 0 if it is not known. Notebooks then show no bar.
        show: True for always, False for never, None for "only on terminals and in notebooks".
    """

    def __init__(self, what: str, total: int, show: bool | None) -> None:
        self.what, self.total, self.done = what, total, 0
        self.wanted = show is not False and (bool(show) or in_notebook() or on_terminal())
        self.begun = self.updated = time.monotonic()
        self.update: Callable[[int], None] | None = None  # takes the steps that are done
        self.stop: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        return self

    def advance(self) -> None:
        """Count one step."""
        self.done += 1
        now = time.monotonic()
        if self.update is None:
            if self.wanted and now - self.begun > 1:
                self._start()
        elif now - self.updated > PAUSE:
            self.updated = now
            self.update(self.done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.update is not None:
            self.update(self.done)
        if self.stop is not None:
            self.stop()

    def _start(self) -> None:
        if not in_notebook():
            self._start_on_terminal()
        elif self.total:  # rich's bar would need ipywidgets, this one only IPython
            from IPython.display import ProgressBar

            bar: Any = ProgressBar(self.total)  # type: ignore[no-untyped-call]
            bar.display()
            self.update = lambda done: setattr(bar, "progress", done)
            self.update(self.done)

    def _start_on_terminal(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        task = bar.add_task(self.what, total=self.total or None, completed=self.done)
        bar.start()
        self.update, self.stop = lambda done: bar.update(task, completed=done), bar.stop


def track(steps: Iterable[T], what: str, show: bool | None = None) -> Iterator[T]:
    """Yield from `steps`, and show a progress bar; see `Progress`."""
    with Progress(what, length_hint(steps), show) as progress:
        for step in steps:
            yield step
            progress.advance()


def in_notebook() -> bool:
    """Return whether this code runs in a notebook: in an IPython shell that has a kernel."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


def on_terminal() -> bool:
    """Return whether stderr is a terminal. A process without a console may have no stderr at all."""
    return sys.stderr is not None and sys.stderr.isatty()
