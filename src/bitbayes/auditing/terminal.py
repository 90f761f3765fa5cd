"""The audit's table for the terminal. It fits into 80 columns."""

from rich import box
from rich.markup import escape
from rich.table import Table

from bitbayes.auditing.findings import Audit
from bitbayes.auditing.table import table_sections
from bitbayes.auditing.words import METHOD_TITLES


def terminal_table(audit: Audit) -> Table:
    """Return all scores of all methods as a table of rich. The best score of each row is bold."""
    table = Table(box=box.SIMPLE_HEAD, title=escape(audit.subject), title_justify="left", pad_edge=False)
    table.add_column("", overflow="fold")
    for method in audit.methods:
        table.add_column(METHOD_TITLES[method].replace(" ", "\n"), justify="right", no_wrap=True)
    for section in table_sections(audit):
        better = f"\n[dim]({section.better} is better)[/dim]" if section.better else ""
        table.add_row(f"[bold]{section.title}[/bold]{better}")
        for row in section.rows:
            values = [
                f"[bold]{v}[/bold]" if best else v for v, best in zip(row.values, row.best, strict=True)
            ]
            table.add_row(f"  {escape(row.label)}", *values)
        table.add_section()
    return table
