"""The paper's toy problems as one interactive HTML page. `mathematics.js` computes it in the browser."""

from bitbayes.explorer.numbers import train_numbers
from bitbayes.explorer.page import render_explorer

__all__ = ["render_explorer", "train_numbers"]
