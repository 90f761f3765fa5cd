"""The tables and figures by name.

Each has a module with two functions. `measure(session)` returns its numbers, a dictionary that JSON can hold.
`show(values, report)` makes its tables and pictures from these numbers alone.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

from bitbayes.errors import one_of
from paper.names import NAMES
from paper.options import Options, check_folders
from paper.report import STEMS, Report
from paper.session import Session


def reproduce(
    names: Iterable[str], options: Options, on_written: Callable[[str, list[Path]], None] | None = None
) -> list[Path]:
    """Make tables and figures of the paper, and return the files written.

    Args:
        names: some of `NAMES`.
        options: the settings of the run.
        on_written: called as `on_written(name, files)` after each table or figure.
    """
    wanted = [one_of("name", name, NAMES) for name in names]
    check_folders(options.output, options.cache)
    session, written = Session(options), []
    for name in wanted:
        module = import_module(f"paper.experiments.{name.replace('-', '_')}")
        report = Report(name, options.file_stem(STEMS.get(name, options.train)), options)
        values = report.read_numbers() if options.redraw else report.write_numbers(module.measure(session))
        module.show(values, report)
        written += report.written
        if on_written is not None:
            on_written(name, report.written)
    return written
