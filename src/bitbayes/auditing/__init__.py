"""How overconfident is a classifier? `audit` measures it; a page, a table and a verdict report it."""

from bitbayes.auditing.advice import advise
from bitbayes.auditing.alerts import find_alerts
from bitbayes.auditing.measure import audit
from bitbayes.auditing.page import GENERATOR, render_page
from bitbayes.auditing.predictors import Predictor
from bitbayes.auditing.progress import ProgressBars
from bitbayes.auditing.report import AuditReport
from bitbayes.auditing.table import TableRow, table_sections
from bitbayes.auditing.target import embedded_target, load_target
from bitbayes.auditing.terminal import terminal_table, write_conclusion
from bitbayes.auditing.verdict import write_verdict

__all__ = [
    "GENERATOR",
    "AuditReport",
    "Predictor",
    "ProgressBars",
    "TableRow",
    "advise",
    "audit",
    "embedded_target",
    "find_alerts",
    "load_target",
    "render_page",
    "table_sections",
    "terminal_table",
    "write_conclusion",
    "write_verdict",
]
