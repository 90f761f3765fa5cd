"""The paper's toys, live in one HTML page. The mathematics runs in the page, in `mathematics.js`."""

from bitbayes.explorer.page import render_explorer

__all__ = ["render_explorer"]
