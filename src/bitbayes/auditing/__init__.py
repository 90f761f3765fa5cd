"""How overconfident is a classifier? `audit` measures it; a table, a page and sentences say it."""

from bitbayes.auditing.findings import Audit
from bitbayes.auditing.measure import audit
from bitbayes.auditing.page import render_page
from bitbayes.auditing.progress import Bars
from bitbayes.auditing.sentences import sentences
from bitbayes.auditing.table import Row, Section, sections
from bitbayes.auditing.target import Target, embedded_target, load_target
from bitbayes.auditing.terminal import terminal_table

__all__ = [
    "Audit",
    "Bars",
    "Row",
    "Section",
    "Target",
    "audit",
    "embedded_target",
    "load_target",
    "render_page",
    "sections",
    "sentences",
    "terminal_table",
]
