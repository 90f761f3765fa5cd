"""How overconfident is a classifier? `audit` measures it; a table, a page and sentences report it."""

from bitbayes.auditing.measure import audit
from bitbayes.auditing.page import render_page
from bitbayes.auditing.progress import ProgressBars
from bitbayes.auditing.sentences import summarise
from bitbayes.auditing.table import TableRow, table_sections
from bitbayes.auditing.target import embedded_target, load_target
from bitbayes.auditing.terminal import terminal_table

__all__ = [
    "ProgressBars",
    "TableRow",
    "audit",
    "embedded_target",
    "load_target",
    "render_page",
    "summarise",
    "table_sections",
    "terminal_table",
]
