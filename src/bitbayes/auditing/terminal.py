"""The audit for the terminal: the conclusion, then all numbers. Both fit into 80 columns."""

import re
import textwrap

from rich import box
from rich.markup import escape
from rich.table import Table

from bitbayes.auditing.advice import advise
from bitbayes.auditing.alerts import find_alerts
from bitbayes.auditing.findings import Audit
from bitbayes.auditing.table import table_sections
from bitbayes.auditing.verdict import Comparison, compare, write_verdict
from bitbayes.auditing.words import title_of

WIDTH = 80
# Of the labels of the rows, and between two columns.
LABELS, PADDING = 28, 2
# The width of a column's title: a number such as *100.0 needs the smaller one.
MINIMUM, LONGEST = 6, 11
BEST_MARK = "*"  # bold print is lost in a pipe


def write_conclusion(audit: Audit) -> str:
    """Return the verdict, the alerts, a comparison for each kind of inputs, and what to do."""
    lines = [*textwrap.wrap(write_verdict(audit), WIDTH), ""]
    for alert in find_alerts(audit):
        lines += textwrap.wrap(
            f"{alert.text} {alert.remedy}", WIDTH, initial_indent="! ", subsequent_indent="  "
        )
    comparisons = compare(audit)
    if comparisons:
        lines += ["", *_write_comparisons(comparisons)]
    for advice in advise(audit):
        lines += ["", *textwrap.wrap(advice.text, WIDTH)]
        lines += [f"    {line}".rstrip() for line in advice.code.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip()


def _write_comparisons(comparisons: list[Comparison]) -> list[str]:
    """Return a line for each comparison, and a second one with what else there is to say."""
    label = min(LABELS, max(len(each.title) for each in comparisons))
    numbers = [f"{each.before} → {each.after}" for each in comparisons]
    width = max(map(len, numbers))
    lines = []
    for each, number in zip(comparisons, numbers, strict=True):
        word = "level" if each.change == "same" else each.change
        title = textwrap.shorten(each.title, label, placeholder="…") or each.title[:label]
        lines.append(f"  {title:{label}}  {number:>{width}}  {word:6}  {each.measure}")
        indent = " " * (label + 4)
        text = f"{each.detail}{f' Best other: {each.rival}.' if each.rival else ''}"
        if each.kind == "normal" or each.rival:
            lines += textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
    first, name = comparisons[0].first, comparisons[0].name
    same = all((each.first, each.name) == (first, name) for each in comparisons)
    if same:
        lines.append(f"  ({first} → {name}; better and worse are against the best of all others)")
    if len(comparisons) > 1:
        lines.append("  (stopped by a threshold that accepts 95% of the normal inputs)")
    return lines


def write_summary(audit: Audit) -> str:
    """Return the name and the conclusion, as `repr` shows them."""
    sizes = f"{audit.classes} classes, {audit.sizes['test']:,} test inputs"
    return f"Audit of {audit.name} ({sizes})\n\n{write_conclusion(audit)}"


def terminal_table(audit: Audit) -> Table:
    """Return all scores of all methods as a table of rich. The best of each row has a mark and is bold."""
    table = Table(box=box.SIMPLE_HEAD, title=escape(audit.name), title_justify="left", pad_edge=False)
    table.add_column("", overflow="fold")
    room = (WIDTH - LABELS) // len(audit.methods) - PADDING
    for method in audit.methods:
        lines = textwrap.wrap(title_of(method), max(MINIMUM, min(LONGEST, room)))
        table.add_column(escape("\n".join(lines)), justify="right", no_wrap=True)
    for section in table_sections(audit):
        better = f"\n[dim]({section.better} is better)[/dim]" if section.better else ""
        table.add_row(f"[bold]{section.title}[/bold]{better}")
        for row in section.rows:
            values = [
                f"[bold]{BEST_MARK}{v}[/bold]" if best else v
                for v, best in zip(row.values, row.best, strict=True)
            ]
            table.add_row(f"  {escape(row.label)}", *values)
        table.add_section()
    table.caption = f"{BEST_MARK} the best of its row"
    table.caption_justify = "left"
    return table
