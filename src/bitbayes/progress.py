"""A progress bar for work that takes longer than a second."""

import sys
import time
from collections.abc import Iterable, Iterator
from operator import length_hint
from typing import TypeVar

T = TypeVar("T")


def track(steps: Iterable[T], what: str, show: bool | None = None) -> Iterator[T]:
    """Yield from `steps`, and show a progress bar on stderr after the first second.

    Args:
        steps: any iterable. If it has a length, the bar shows the remaining time.
        what: the name of the work, beside the bar.
        show: True for always, False for never, None for "only if stderr is a terminal".
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
