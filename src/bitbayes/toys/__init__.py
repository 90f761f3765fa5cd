"""Small data and small networks for a first try: embedded digits with a trained LeNet, and toys in the plane.

Everything comes with the package, and nothing is downloaded. The file `embedded/README.md` says where the
embedded images come from, and under which terms. Each network ends in an `nn.Linear` whose output is the
network's output.
"""

from bitbayes.toys.images import Digits, digits, digits_lenet, validation_split
from bitbayes.toys.lenet import LeNet
from bitbayes.toys.mlp import MLP
from bitbayes.toys.pixels import scale_pixels
from bitbayes.toys.plane import gaussians, two_moons
from bitbayes.toys.problems import TOY_PROBLEMS, Toy, make_moons, train_toy

__all__ = [
    "MLP",
    "TOY_PROBLEMS",
    "Digits",
    "LeNet",
    "Toy",
    "digits",
    "digits_lenet",
    "gaussians",
    "make_moons",
    "scale_pixels",
    "train_toy",
    "two_moons",
    "validation_split",
]
