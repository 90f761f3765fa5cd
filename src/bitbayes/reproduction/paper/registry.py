"""The tables and figures by name.

Each has a module with two functions: `measure(session)` makes its numbers, a dictionary that JSON can hold;
`show(values, report)` makes its tables and pictures of nothing but those numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

from bitbayes.errors import one_of
from bitbayes.reproduction.paper.options import Options, check_folders
from bitbayes.reproduction.paper.report import TOYS, Report
from bitbayes.reproduction.paper.session import Session

# In the order in which `all` makes them: what needs no other training first.
NAMES = (
    "toy",
    "linear-regions",
    "bounded-logit",
    "table2",
    "confidence-vs-scale",
    "rotated-mnist",
    "adversarial",
    "histograms",
    "table3",
    "table1",
    "oe",
    "acet",
    "ece",
    "dkl",
)


def reproduce(
    names: Iterable[str], options: Options, told: Callable[[str, list[Path]], None] | None = None
) -> list[Path]:
    """Make tables and figures of the paper; return the files written.

    `told(name, files)` hears of each as soon as it is there.
    """
    wanted = [one_of("name", name, NAMES) for name in names]
    check_folders(options.output, options.cache)
    session, written = Session(options), []
    for name in wanted:
        module = import_module(f"bitbayes.reproduction.paper.{name.replace('-', '_')}")
        report = Report(name, options.stem("toy" if name in TOYS else options.train), options)
        values = report.read() if options.redraw else report.numbers(module.measure(session))
        module.show(values, report)
        written += report.written
        if told is not None:
            told(name, report.written)
    return written
