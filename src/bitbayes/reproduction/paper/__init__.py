"""The paper's tables and figures, one module each, made from data beside the paper's own numbers.

`bitbayes reproduce NAME` on the command line, or:

>>> from bitbayes.reproduction.paper import NAMES
>>> NAMES[:3]
('toy', 'linear-regions', 'bounded-logit')
"""

from bitbayes.reproduction.paper.options import Options
from bitbayes.reproduction.paper.registry import NAMES, reproduce

__all__ = ["NAMES", "Options", "reproduce"]
