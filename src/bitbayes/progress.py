"""A progress bar for work that takes longer than a second, on terminals and in notebooks: rich's own."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

T = TypeVar("T")


class Progress:
    """A bar on stderr, inside a `with` block. It appears after the first second and is gone at the end.

    Args:
        what: the name of the work, beside the bar.
        total: the number of steps; 0 if it is not known.
        show: True for always, False for never, None for "only on terminals and in notebooks".
    """

    def __init__(self, what: str, total: int, show: bool | None) -> None:
        self.what, self.total, self.done = what, total, 0
        self.wanted = show is not False and (bool(show) or in_notebook() or on_terminal())
        self.begun = time.monotonic()
        self.bar: RichProgress | None = None

    def __enter__(self) -> Self:
        return self

    def advance(self) -> None:
        """Count one step."""
        self.done += 1
        if self.bar is not None:
            self.bar.advance(self.bar.task_ids[0])
        elif self.wanted and time.monotonic() - self.begun > 1:
            self._start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _start(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=bar_console(), transient=True)
        self.bar.add_task(self.what, total=self.total or None, completed=self.done)
        self.bar.start()


def track(steps: Iterable[T], what: str, show: bool | None = None) -> Iterator[T]:
    """Yield from `steps`, and show a progress bar; see `Progress`."""
    with Progress(what, length_hint(steps), show) as progress:
        for step in steps:
            yield step
            progress.advance()


def bar_console() -> Console:
    """Return where bars are drawn: on stderr, or in the output of a notebook's cell.

    In a notebook, rich's own bars need ipywidgets. Without them they are drawn as on a terminal.
    """
    from rich.console import Console

    if in_notebook() and find_spec("ipywidgets") is None:
        return Console(stderr=True, force_jupyter=False, force_terminal=True)
    return Console(stderr=True)


def in_notebook() -> bool:
    """Return whether this code runs in a notebook: in an IPython shell that has a kernel."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


def on_terminal() -> bool:
    """Return whether stderr is a terminal. A process without a console may have no stderr at all."""
    return sys.stderr is not None and sys.stderr.isatty()
