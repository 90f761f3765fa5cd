"""Small data for examples and tests: embedded digits with a trained network, and the paper's toy sets.

Everything here comes with the package; nothing is downloaded. Where the embedded images come from, and
under which terms, is said in `embedded/README.md`.
"""

from bitbayes.data.images import digits, validation_split
from bitbayes.data.lenet import digits_lenet
from bitbayes.data.toys import gaussians, two_moons

__all__ = ["digits", "digits_lenet", "gaussians", "two_moons", "validation_split"]
