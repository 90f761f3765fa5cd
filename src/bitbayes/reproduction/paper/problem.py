"""The classification problems: training set, test set, and sets of outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bitbayes.errors import MissingFileError, one_of
from bitbayes.reproduction.data import digits, load
from bitbayes.reproduction.networks import LeNet
from bitbayes.reproduction.paper.options import Options
from bitbayes.reproduction.training import MNIST, Recipe


@dataclass(frozen=True)
class Outliers:
    """A set of images that belong to no class."""

    images: Tensor
    paper_row: str | None  # its row in the paper's tables


@dataclass(frozen=True)
class Problem:
    """A classification problem. Images are pixels in uint8, (n, c, h, w), on the device of the run."""

    name: str
    title: str
    paper_name: str  # its name in the paper's tables
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    outliers: dict[str, Outliers]
    exposure_images: Tensor  # the outliers of outlier exposure
    validation_points: int  # taken from the test set in each trial
    noise_points: int
    tuning_points: int  # of validation points, and of noise, on which sampled networks are tuned
    recipe: Recipe
    make_network: Callable[[int], nn.Module]  # takes the number of logits
    classes: int = 10  # the number of logits: 1 for a binary problem

    def shrink(self, n: int) -> Problem:
        """Return the problem with at most n images in each set, and one epoch of training."""
        return replace(
            self,
            train_images=self.train_images[:n],
            train_labels=self.train_labels[:n],
            test_images=self.test_images[:n],
            test_labels=self.test_labels[:n],
            outliers={name: replace(each, images=each.images[:n]) for name, each in self.outliers.items()},
            validation_points=n // 3,
            noise_points=min(n // 2, self.noise_points),
            tuning_points=n // 4,
            recipe=replace(self.recipe, epochs=1),
        )

    def binary(self, first: int, second: int) -> Problem:
        """Return the binary problem of two of the classes. `second` becomes class 1."""

        def select(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            kept = (labels == first) | (labels == second)
            return images[kept], (labels[kept] == second).long()

        train_images, train_labels = select(self.train_images, self.train_labels)
        test_images, test_labels = select(self.test_images, self.test_labels)
        return replace(
            self,
            name=f"{self.name}-{first}-{second}",
            title=f"{self.title}, {first} against {second}",
            paper_name=f"Binary-{self.paper_name}",
            train_images=train_images,
            train_labels=train_labels,
            test_images=test_images,
            test_labels=test_labels,
            validation_points=min(1000, len(test_images) // 2),
            classes=1,
        )


def make_problem(options: Options) -> Problem:
    """Return the problem that `options.train` names."""
    problem = PROBLEMS[one_of("train", options.train, tuple(PROBLEMS))](options)
    if options.quick:
        problem = problem.shrink(60)
    if options.epochs is not None:
        problem = replace(problem, recipe=replace(problem.recipe, epochs=options.epochs))
    return problem


def _make_mnist(options: Options) -> Problem:
    def read(name: str, split: str) -> tuple[Tensor, Tensor]:
        images, labels = load(name, split, options.data)
        return images.to(options.device), labels.to(options.device)

    train_images, train_labels = read("mnist", "train")
    test_images, test_labels = read("mnist", "test")
    try:
        letters, exposure = read("emnist", "test")[0], read("emnist", "train")[0]
        title = "EMNIST letters"
    except MissingFileError as missing:
        try:
            letters, exposure = read("letters", "test")[0], read("letters", "train")[0]
        except MissingFileError:
            raise missing from None
        title = "Letters (substitute for EMNIST)"
    return Problem(
        name="mnist",
        title="MNIST",
        paper_name="MNIST",
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        outliers={
            title: Outliers(letters, "EMNIST"),
            "Fashion-MNIST": Outliers(read("fashion_mnist", "test")[0], "FMNIST"),
        },
        exposure_images=exposure,
        validation_points=2000,
        noise_points=2000,
        tuning_points=2000,
        recipe=MNIST,
        make_network=LeNet,
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
        train_images=to_pixels(data.train_images),
        train_labels=data.train_labels.to(options.device),
        test_images=to_pixels(data.test_images),
        test_labels=data.test_labels.to(options.device),
        outliers={
            "Letters (substitute for EMNIST)": Outliers(to_pixels(data.letters_images[500:900]), "EMNIST"),
            "Fashion-MNIST": Outliers(to_pixels(data.fashion_images[:400]), "FMNIST"),
        },
        exposure_images=to_pixels(data.letters_images[:500]),
        validation_points=500,
        noise_points=400,
        tuning_points=100,
        recipe=replace(MNIST, epochs=30),
        make_network=LeNet,
    )


PROBLEMS: dict[str, Callable[[Options], Problem]] = {"digits": _make_digits, "mnist": _make_mnist}
