"""The embedded digits, and two sets of images that are no digits."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.reproduction.data.files import read


@dataclass(frozen=True)
class Digits:
    """Images are float32 in [0, 1], labels int64 in 0..9.

    Shapes: `train_images` (5000, 1, 28, 28), `train_labels` (5000,), `test_images` (2000, 1, 28, 28),
    `test_labels` (2000,), `fashion_images` (1000, 1, 28, 28), `letters_images` (1000, 1, 28, 28).
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    fashion_images: Tensor
    letters_images: Tensor


def digits() -> Digits:
    """Return 7,000 MNIST digits, with 1,000 Fashion-MNIST images and 1,000 letters to be unsure about.

    A real set that is small enough to come with the package: 500 training and 200 test images of each
    digit, 100 of each Fashion-MNIST class, 38 or 39 of each letter; within a class chosen at random, and
    in random order. The letters are upper-case samples of the public A–Z handwritten set, a substitute
    for EMNIST letters: numbers on them do not compare with the paper's EMNIST rows.

    >>> data = digits()
    >>> data.train_images.shape, data.test_images.shape
    (torch.Size([5000, 1, 28, 28]), torch.Size([2000, 1, 28, 28]))
    >>> data.test_labels.bincount()
    tensor([200, 200, 200, 200, 200, 200, 200, 200, 200, 200])
    """
    mnist, fashion, letters = (_arrays(name) for name in ("mnist.npz", "fashion_mnist.npz", "letters.npz"))
    return Digits(
        train_images=_as_images(mnist["train_images"]),
        train_labels=torch.from_numpy(mnist["train_labels"]).long(),
        test_images=_as_images(mnist["test_images"]),
        test_labels=torch.from_numpy(mnist["test_labels"]).long(),
        fashion_images=_as_images(fashion["images"]),
        letters_images=_as_images(letters["images"]),
    )


def validation_split(
    images: Tensor, labels: Tensor, n: int, seed: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Split `(images, labels)` at random into n validation points and the rest, the test points.

    The paper takes its validation set from the test set this way, by another seed in each trial.

    Shapes: images (N, ...), labels (N,) -> ((n, ...), (n,)), ((N − n, ...), (N − n,)).

    >>> data = digits()
    >>> validation, test = validation_split(data.test_images, data.test_labels, 500, seed=0)
    >>> validation[0].shape, test[1].shape
    (torch.Size([500, 1, 28, 28]), torch.Size([1500]))
    """
    if len(images) != len(labels):
        raise ArgumentError(f"{len(images)} images with {len(labels)} labels: give one label per image")
    if not 0 < n < len(images):
        raise ArgumentError(
            f"n={n} leaves a part of {len(images)} images empty: choose 1 to {len(images) - 1}"
        )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).to(images.device)
    first, rest = order[:n], order[n:]
    return (images[first], labels[first]), (images[rest], labels[rest])


def _arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(read(name)), allow_pickle=False) as arrays:
        return dict(arrays)


def _as_images(pixels: np.ndarray) -> Tensor:
    """Pixels (n, 28, 28) of 0..255 as images (n, 1, 28, 28) in [0, 1]."""
    return torch.from_numpy(pixels).unsqueeze(1).float() / 255
