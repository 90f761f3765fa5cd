"""The methods on a network trained with outlier exposure."""

from functools import partial

from paper.experiments import exposed

measure = partial(exposed.measure, "oe")
show = partial(exposed.show, "oe")
