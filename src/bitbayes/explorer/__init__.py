"""A plain network beside bitbayes, as one interactive HTML page: the paper's toys, and digits.

The scripts in `page/mathematics` compute all of it in the browser.
"""

from bitbayes.explorer.numbers import train_numbers
from bitbayes.explorer.page import render_explorer

__all__ = ["render_explorer", "train_numbers"]
