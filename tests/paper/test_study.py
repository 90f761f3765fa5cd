"""What a study says about the choices of its methods."""

from bitbayes import prior
from paper import study


def test_the_range_of_prior_variances_is_that_of_tune():
    assert (study.SMALLEST_VARIANCE, study.LARGEST_VARIANCE) == (
        prior.SMALLEST_VARIANCE,
        prior.LARGEST_VARIANCE,
    )
