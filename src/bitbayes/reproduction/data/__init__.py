"""Data: embedded digits with a trained network, the paper's toy sets, and readers for its real data sets.

The digits and the toys come with the package; `load` reads files that a user has. Nothing is downloaded.
Where the embedded images come from, and under which terms, is said in `embedded/README.md`.
"""

from bitbayes.reproduction.data.images import digits, validation_split
from bitbayes.reproduction.data.lenet import digits_lenet
from bitbayes.reproduction.data.sets import as_images, load
from bitbayes.reproduction.data.toys import gaussians, two_moons

__all__ = [
    "as_images",
    "digits",
    "digits_lenet",
    "gaussians",
    "load",
    "two_moons",
    "validation_split",
]
