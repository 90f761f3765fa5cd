"""The paper's tables and figures, made from data, with the paper's own numbers beside ours.

`python -m paper NAME` makes one of them, from a checkout. This package is no part of the library, and uses
only what the library shows to everybody.
"""
