"""The classification problems: training set, test set, and sets of outliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.errors import MissingFileError, one_of
from bitbayes.toys import LeNet, digits
from paper.data import load
from paper.options import Options
from paper.resnet import resnet18
from paper.training import CIFAR, MNIST, SVHN, Recipe


class ImageSet(NamedTuple):
    """Images (n, c, h, w) as pixels in uint8, and their labels (n,)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Outliers:
    """A set of images that belong to no class."""

    images: Tensor
    paper_row: str | None  # its row in the paper's tables


@dataclass(frozen=True)
class Problem:
    """A classification problem. All images are pixels in uint8, on the device of the run."""

    name: str
    title: str
    paper_name: str  # its name in the paper's tables
    train: ImageSet
    test: ImageSet
    outliers: dict[str, Outliers]
    load_exposure_images: Callable[[], Tensor]  # the outliers of outlier exposure
    exposure_title: str
    validation_points: int  # taken from the test set in each trial
    noise_points: int
    tuning_points: int  # of validation points, and of noise, on which sampled networks are tuned
    recipe: Recipe
    make_network: Callable[[int], nn.Module]  # takes the number of logits
    classes: int = 10  # the number of logits: 1 for a binary problem
    paper_pair: tuple[int, int] | None = None  # the two classes of the paper's table 1
    # How the plain network is trained further, by objective. Networks of other objectives start afresh.
    fine_tuning: Mapping[str, Recipe] = field(default_factory=dict)
    attack_ramp: float = 2.0  # epochs of fine-tuning in which ACET's attack grows to its full radius
    kernel_epochs: int | None = None  # of deep kernel learning. None: those of the recipe
    deltas: Sequence[int] = range(21)  # by which test images are multiplied, in the figures of confidence

    def shrink(self, n: int) -> Problem:
        """Return the problem with at most n images in each set, and one epoch of training."""
        return replace(
            self,
            train=ImageSet(*(each[:n] for each in self.train)),
            test=ImageSet(*(each[:n] for each in self.test)),
            outliers={name: replace(each, images=each.images[:n]) for name, each in self.outliers.items()},
            validation_points=n // 3,
            noise_points=min(n // 2, self.noise_points),
            tuning_points=n // 4,
            recipe=replace(self.recipe, epochs=1),
            fine_tuning={key: replace(recipe, epochs=1) for key, recipe in self.fine_tuning.items()},
            deltas=self.deltas[::5],
            kernel_epochs=1,
        )

    def binary(self, first: int, second: int) -> Problem:
        """Return the binary problem of two of the classes. `second` becomes class 1."""

        def select(images: Tensor, labels: Tensor) -> ImageSet:
            kept = (labels == first) | (labels == second)
            return ImageSet(images[kept], (labels[kept] == second).long())

        test = select(*self.test)
        return replace(
            self,
            name=f"{self.name}-{first}-{second}",
            title=f"{self.title}, {first} against {second}",
            paper_name=f"Binary-{self.paper_name}",
            train=select(*self.train),
            test=test,
            validation_points=min(1000, len(test.images) // 2),
            classes=1,
        )


def make_problem(options: Options) -> Problem:
    """Return the problem that `options.train` names."""
    problem = PROBLEMS[one_of("train", options.train, tuple(PROBLEMS))](options)
    if options.quick:
        problem = problem.shrink(60)
    if options.epochs is not None:
        recipe = replace(problem.recipe, epochs=options.epochs)
        problem = replace(problem, recipe=recipe, kernel_epochs=options.epochs)
    return problem


def _read(options: Options, name: str, split: str) -> ImageSet:
    return ImageSet(*(each.to(options.device) for each in load(name, split, options.data)))


def _make_mnist(options: Options) -> Problem:
    train, test = _read(options, "mnist", "train"), _read(options, "mnist", "test")
    letters_set, title = "emnist", "EMNIST letters"
    try:
        letters = _read(options, letters_set, "test")
    except MissingFileError as missing:
        letters_set, title = "letters", "Letters (substitute for EMNIST)"
        try:
            letters = _read(options, letters_set, "test")
        except MissingFileError:
            raise missing from None
    return Problem(
        name="mnist",
        title="MNIST",
        paper_name="MNIST",
        train=train,
        test=test,
        outliers={
            title: Outliers(letters.images, "EMNIST"),
            "Fashion-MNIST": Outliers(_read(options, "fashion_mnist", "test").images, "FMNIST"),
        },
        load_exposure_images=lambda: _read(options, letters_set, "train").images,
        exposure_title=f"{title}, its training split"
        + (" (vowels, of another source than the test letters)" if letters_set == "letters" else ""),
        validation_points=2000,
        noise_points=2000,
        tuning_points=2000,
        recipe=MNIST,
        make_network=LeNet,
        paper_pair=(3, 8),
    )


def _make_digits(options: Options) -> Problem:
    """Return the problem of the embedded digits, small enough for a few minutes on two CPU cores."""
    data = digits()

    def to_pixels(images: Tensor) -> Tensor:
        return (255 * images).round().to(torch.uint8).to(options.device)

    return Problem(
        name="digits",
        title="Embedded digits",
        paper_name="MNIST",
        train=ImageSet(to_pixels(data.train_images), data.train_labels.to(options.device)),
        test=ImageSet(to_pixels(data.test_images), data.test_labels.to(options.device)),
        outliers={
            "Letters (substitute for EMNIST)": Outliers(to_pixels(data.letters_images[500:900]), "EMNIST"),
            "Fashion-MNIST": Outliers(to_pixels(data.fashion_images[:400]), "FMNIST"),
        },
        load_exposure_images=lambda: to_pixels(data.letters_images[:500]),
        exposure_title="500 other letters",
        validation_points=500,
        noise_points=400,
        tuning_points=100,
        recipe=replace(MNIST, epochs=30),
        make_network=LeNet,
        paper_pair=(3, 8),
    )


class _ColourProblem(NamedTuple):
    """What tells a problem of colour images from another."""

    title: str
    classes: int
    recipe: Recipe
    outliers: tuple[str, ...]  # other data sets
    paper_pair: tuple[int, int]
    exposure: str  # the data set of which outlier exposure takes the training images
    deltas: range  # the paper's, for SVHN every tenth


TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "lsun": "LSUN (packed scenes)"}
# The rows of the paper's tables. It does not test CIFAR-10 on CIFAR-100, nor the reverse.
PAPER_ROWS = {"svhn": "SVHN", "lsun": "LSUN", "cifar10": "CIFAR10"}
COLOUR_PROBLEMS = {
    "cifar10": _ColourProblem(
        "CIFAR-10", 10, CIFAR, ("svhn", "lsun", "cifar100"), (3, 5), "cifar100", range(31)
    ),
    "cifar100": _ColourProblem(
        "CIFAR-100", 100, CIFAR, ("svhn", "lsun", "cifar10"), (47, 52), "cifar10", range(31)
    ),
    "svhn": _ColourProblem("SVHN", 10, SVHN, ("cifar10", "lsun"), (3, 9), "cifar100", range(0, 201, 10)),
}
# From scratch, outlier exposure takes twice as long as plain training, and ACET some 30 times. The epochs of
# outlier exposure are those of its authors' own fine-tuning.
FINE_TUNING_EPOCHS = {"oe": 10, "acet": 4}
FINE_TUNING_RATE = 0.01


def _make_colour(name: str, options: Options) -> Problem:
    """Return the problem of CIFAR-10, CIFAR-100 or SVHN, with a ResNet-18."""
    own = COLOUR_PROBLEMS[name]
    return Problem(
        name=name,
        title=own.title,
        paper_name=own.title.replace("-", ""),
        train=_read(options, name, "train"),
        test=_read(options, name, "test"),
        outliers={
            TITLES[each]: Outliers(_read(options, each, "test").images, PAPER_ROWS.get(each))
            for each in own.outliers
        },
        load_exposure_images=lambda: _read(options, own.exposure, "train").images,
        exposure_title=f"the training images of {TITLES[own.exposure]} (the paper: 80 million tiny images)",
        validation_points=2000,
        noise_points=2000,
        tuning_points=2000,
        recipe=own.recipe,
        make_network=partial(resnet18, width=4) if options.quick else resnet18,
        classes=own.classes,
        fine_tuning={
            objective: replace(own.recipe, learning_rate=FINE_TUNING_RATE, epochs=epochs)
            for objective, epochs in FINE_TUNING_EPOCHS.items()
        },
        deltas=own.deltas,
        paper_pair=own.paper_pair,
        kernel_epochs=15,
    )


PROBLEMS: dict[str, Callable[[Options], Problem]] = {
    "digits": _make_digits,
    "mnist": _make_mnist,
    **{name: partial(_make_colour, name) for name in COLOUR_PROBLEMS},
}
