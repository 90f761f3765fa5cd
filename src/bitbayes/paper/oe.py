"""The methods on a network trained with outlier exposure."""

from functools import partial

from bitbayes.paper import exposed

run = partial(exposed.run, "oe")
