"""A bar on stderr for each stage of an audit."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Bars:
    """Called with a stage, the steps done and the steps in all: starts that stage's bar or moves it on."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:16}"), BarColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=Console(stderr=True))
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(stage, total=total)
        self.progress.update(self.tasks[stage], completed=done, total=total)

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
