"""The methods on a network trained with ACET."""

from functools import partial

from paper.experiments import exposed

measure = partial(exposed.measure, "acet")
show = partial(exposed.show, "acet")
