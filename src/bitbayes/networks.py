"""The public name of `bitbayes.reproduction.networks`."""

from bitbayes.reproduction.networks import *  # noqa: F403
from bitbayes.reproduction.networks import __all__ as __all__
