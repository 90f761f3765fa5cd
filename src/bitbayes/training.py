"""The public name of `bitbayes.reproduction.training`."""

from bitbayes.reproduction.training import *  # noqa: F403
from bitbayes.reproduction.training import __all__ as __all__
