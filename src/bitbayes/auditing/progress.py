"""How an audit reports its progress, and progress bars that show it on stderr."""

from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

# Called with the name of a stage, the steps done, and the number of all its steps (None if unknown).
ReportProgress = Callable[[str, int, int | None], None]


class ProgressBars:
    """One progress bar on stderr for each stage of an audit. An instance is a `ReportProgress`."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:17}"), BarColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=Console(stderr=True))
        self.tasks: dict[str, TaskID] = {}
        self.stage = ""  # the one that is going on

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
