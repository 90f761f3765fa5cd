"""How an audit reports its progress, and bars that show it: on stderr, or in a notebook."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bitbayes.progress import NotebookBar, in_notebook, on_terminal

# Called with the name of a stage, the steps done, and the number of all its steps (None if unknown).
ReportProgress = Callable[[str, int, int | None], None]


def say_nothing(stage: str, done: int, total: int | None) -> None:
    """Report no progress."""


@contextmanager
def shown(progress: bool | ReportProgress | None) -> Iterator[ReportProgress]:
    """Yield the function that an audit reports to: bars, one that does nothing, or the caller's own.

    Args:
        progress: True for bars, False for none, None for bars on terminals and in notebooks only; or a
            function.
    """
    if callable(progress):
        yield progress
    elif progress is False or (progress is None and not in_notebook() and not on_terminal()):
        yield say_nothing
    elif in_notebook():
        bars = NotebookBars()
        yield bars
        bars.stop()
    else:
        with ProgressBars() as terminal:
            yield terminal


class ProgressBars:
    """One progress bar on stderr for each stage of an audit. An instance is a `ReportProgress`."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:17}"), BarColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=Console(stderr=True))
        self.tasks: dict[str, TaskID] = {}
        self.stage = ""  # the current one

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        self.stage = stage
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(stage, total=total)
        self.progress.update(self.tasks[stage], completed=done, total=total)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()


class NotebookBars:
    """One bar in the output of a cell for each stage of an audit. An instance is a `ReportProgress`."""

    def __init__(self) -> None:
        self.bar: NotebookBar | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if self.bar is None or self.bar.what != stage:
            self.stop()
            self.bar = NotebookBar(stage, total)
            self.bar.start()
        while self.bar.done < done:
            self.bar.advance()
        if done == total:  # the end of a stage may be reported with a different number of steps
            self.bar.done = self.bar.total = total

    def stop(self) -> None:
        """Show the last bar in its final state."""
        if self.bar is not None:
            self.bar.stop()
