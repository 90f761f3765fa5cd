"""The classification problems: what is trained on, what is tested on, and what belongs to no class."""

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
    """A set of images that belong to no class; `paper`: the row it has in the paper's tables."""

    images: Tensor
    paper: str | None


@dataclass(frozen=True)
class Problem:
    """Images are pixels in uint8, (n, c, h, w), on the device that everything runs on.

    `exposure`: images for outlier exposure. `validation`: points split off the test set in each trial.
    `paper`: the problem's name in the paper's tables.
    """

    name: str
    title: str
    paper: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    outliers: dict[str, Outliers]
    exposure: Tensor
    validation: int
    noise: int
    tuning: int  # points (and as many of noise) on which the all-layer methods' prior is chosen
    recipe: Recipe
    make: Callable[[int], nn.Module]
    classes: int = 10

    def first(self, n: int) -> Problem:
        """The same problem with at most n images in each set."""
        return replace(
            self,
            train_images=self.train_images[:n],
            train_labels=self.train_labels[:n],
            test_images=self.test_images[:n],
            test_labels=self.test_labels[:n],
            outliers={name: Outliers(each.images[:n], each.paper) for name, each in self.outliers.items()},
            validation=n // 3,
            noise=min(n // 2, self.noise),
            tuning=n // 4,
            recipe=replace(self.recipe, epochs=1),
        )

    def pair(self, first: int, second: int) -> Problem:
        """The binary problem of two of the classes, `second` being 1."""

        def of(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            kept = (labels == first) | (labels == second)
            return images[kept], (labels[kept] == second).long()

        train_images, train_labels = of(self.train_images, self.train_labels)
        test_images, test_labels = of(self.test_images, self.test_labels)
        return replace(
            self,
            name=f"{self.name}-{first}-{second}",
            title=f"{self.title}, {first} against {second}",
            paper=f"Binary-{self.paper}",
            train_images=train_images,
            train_labels=train_labels,
            test_images=test_images,
            test_labels=test_labels,
            validation=min(1000, len(test_images) // 2),
            classes=1,
        )


def make_problem(options: Options) -> Problem:
    """The problem that `--train` names."""
    maker = PROBLEMS[one_of("train", options.train, tuple(PROBLEMS))]
    problem = maker(options)
    if options.quick:
        problem = problem.first(60)
    if options.epochs is not None:
        problem = replace(problem, recipe=replace(problem.recipe, epochs=options.epochs))
    return problem


def _mnist(options: Options) -> Problem:
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
        paper="MNIST",
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        outliers={
            title: Outliers(letters, "EMNIST"),
            "Fashion-MNIST": Outliers(read("fashion_mnist", "test")[0], "FMNIST"),
        },
        exposure=exposure,
        validation=2000,
        noise=2000,
        tuning=2000,
        recipe=MNIST,
        make=LeNet,
    )


def _digits(options: Options) -> Problem:
    """The embedded digits: a thirtieth of MNIST, for two CPU cores and five minutes."""
    data = digits()

    def pixels(images: Tensor) -> Tensor:
        return (255 * images).round().to(torch.uint8).to(options.device)

    return Problem(
        name="digits",
        title="Embedded digits",
        paper="MNIST",
        train_images=pixels(data.train_images),
        train_labels=data.train_labels.to(options.device),
        test_images=pixels(data.test_images),
        test_labels=data.test_labels.to(options.device),
        outliers={
            "Letters (substitute for EMNIST)": Outliers(pixels(data.letters_images[500:900]), "EMNIST"),
            "Fashion-MNIST": Outliers(pixels(data.fashion_images[:400]), "FMNIST"),
        },
        exposure=pixels(data.letters_images[:500]),
        validation=500,
        noise=400,
        tuning=100,
        recipe=replace(MNIST, epochs=30),
        make=LeNet,
    )


PROBLEMS: dict[str, Callable[[Options], Problem]] = {"digits": _digits, "mnist": _mnist}
