"""The methods on a network trained with ACET."""

from functools import partial

from bitbayes.reproduction.paper import exposed

measure = partial(exposed.measure, "acet")
show = partial(exposed.show, "acet")
