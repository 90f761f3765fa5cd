"""How an audit reports its progress, and bars that show it: on stderr, or in a notebook."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bitbayes.model import Batch
from bitbayes.progress import in_notebook, on_terminal

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
        yield notebook_bars()
    else:
        with ProgressBars() as bars:
            yield bars


def reported(steps: Iterable[Batch], stage: str, total: int, report: ReportProgress) -> Iterator[Batch]:
    """Yield the steps of a stage, and report each. A total of 0 is unknown."""
    report(stage, 0, total or None)
    for done, step in enumerate(steps):
        yield step
        report(stage, done + 1, total or None)


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


def notebook_bars() -> ReportProgress:
    """Return a function that shows one of IPython's bars for each stage: rich's need ipywidgets."""
    from IPython.display import ProgressBar

    bars: dict[str, Any] = {}

    def report(stage: str, done: int, total: int | None) -> None:
        if not total:
            return
        if stage not in bars:
            print(stage)
            bars[stage] = ProgressBar(total)  # type: ignore[no-untyped-call]
            bars[stage].display()
        bars[stage].total, bars[stage].progress = total, done

    return report
