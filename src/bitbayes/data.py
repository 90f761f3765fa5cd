"""The public name of `bitbayes.reproduction.data`."""

from bitbayes.reproduction.data import *  # noqa: F403
from bitbayes.reproduction.data import __all__ as __all__
