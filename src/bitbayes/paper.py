"""The public name of `bitbayes.reproduction.paper`."""

from bitbayes.reproduction.paper import *  # noqa: F403
from bitbayes.reproduction.paper import __all__ as __all__
