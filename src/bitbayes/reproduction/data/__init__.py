"""Data: embedded digits with a trained network, the paper's toy sets, and readers for its real data sets.

The digits and the toys come with the package. `load` reads files that the user has. Nothing is downloaded.
The file `embedded/README.md` says where the embedded images come from, and under which terms.
"""

from bitbayes.reproduction.data.images import digits, validation_split
from bitbayes.reproduction.data.lenet import digits_lenet
from bitbayes.reproduction.data.pixels import scale_pixels
from bitbayes.reproduction.data.sets import load
from bitbayes.reproduction.data.toys import gaussians, two_moons

__all__ = [
    "digits",
    "digits_lenet",
    "gaussians",
    "load",
    "scale_pixels",
    "two_moons",
    "validation_split",
]
