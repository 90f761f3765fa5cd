"""The table in the terminal, readable at 80 columns."""

from __future__ import annotations

from rich import box
from rich.markup import escape
from rich.table import Table

from bitbayes.auditing.findings import METHODS, Audit
from bitbayes.auditing.table import sections
from bitbayes.auditing.words import NAMES


def terminal_table(audit: Audit) -> Table:
    """All scores of the three methods, the best of each row in bold."""
    table = Table(box=box.SIMPLE_HEAD, title=escape(audit.subject), title_justify="left", pad_edge=False)
    table.add_column("", overflow="fold")
    for method in METHODS:
        table.add_column(NAMES[method], justify="right", no_wrap=True)
    for section in sections(audit):
        better = f" [dim]({section.better} is better)[/dim]" if section.better else ""
        table.add_row(f"[bold]{section.title}[/bold]{better}")
        for row in section.rows:
            values = [
                f"[bold]{v}[/bold]" if best else v for v, best in zip(row.values, row.best, strict=True)
            ]
            table.add_row(f"  {escape(row.label)}", *values)
        table.add_section()
    return table
