"""A progress bar for whatever takes longer than a second."""

import sys
import time
from collections.abc import Iterable, Iterator
from operator import length_hint
from typing import TypeVar

T = TypeVar("T")


def track(steps: Iterable[T], what: str, show: bool | None = None) -> Iterator[T]:
    """Yield from `steps`, with a bar on stderr from the first second on.

    `show=None` shows it on a terminal only, `True` always, `False` never.
    """
    if show is False or (show is None and not sys.stderr.isatty()):
        yield from steps
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    total = length_hint(steps) or None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    begun = time.monotonic()
    running = False
    try:
        for step in steps:
            yield step
            bar.advance(task)
            if not running and time.monotonic() - begun > 1:
                bar.start()
                running = True
    finally:
        if running:
            bar.stop()
