"""The paper's tables and figures, made from data, with the paper's own numbers beside ours.

Each table or figure has one module. On the command line, `bitbayes reproduce NAME` makes one of them.

>>> from bitbayes.reproduction.paper import NAMES
>>> NAMES[:3]
('toy', 'linear-regions', 'bounded-logit')
"""

from bitbayes.reproduction.names import NAMES, all_names
from bitbayes.reproduction.paper.options import Options
from bitbayes.reproduction.paper.registry import reproduce

__all__ = ["NAMES", "Options", "all_names", "reproduce"]
