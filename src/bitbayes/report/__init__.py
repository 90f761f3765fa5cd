"""What an audit found, for people: three sentences, a table, and a page of one file."""

from bitbayes.report.files import check_writable, write_atomically
from bitbayes.report.page import render_page
from bitbayes.report.progress import Bars
from bitbayes.report.sentences import sentences
from bitbayes.report.table import Row, Section, sections
from bitbayes.report.terminal import terminal_table

__all__ = [
    "Bars",
    "Row",
    "Section",
    "check_writable",
    "render_page",
    "sections",
    "sentences",
    "terminal_table",
    "write_atomically",
]
