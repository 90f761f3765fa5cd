"""The methods on a network trained with ACET."""

from functools import partial

from bitbayes.paper import exposed

run = partial(exposed.run, "acet")
