"""Progress bars."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track as show_bar

T = TypeVar("T")


def track(steps: Iterable[T], what: str, show: bool | None = None) -> Iterator[T]:
    """Yield from `steps` with a bar on stderr that disappears at the end.

    Args:
        steps: any iterable. If it has a length, the bar shows the remaining time.
        what: the name of the work, beside the bar.
        show: True for always, False for never, None for "only on terminals".
    """
    if show is None:
        show = sys.stderr.isatty()
    bar = show_bar(steps, what, console=Console(stderr=True), transient=True) if show else steps
    yield from bar
