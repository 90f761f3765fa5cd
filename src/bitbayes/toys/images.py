"""The embedded digits, two embedded sets of images that are not digits, and the LeNet of the digits."""

import io
from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.toys.files import read_embedded
from bitbayes.toys.lenet import LeNet
from bitbayes.toys.pixels import scale_pixels

FASHION_NAMES = (
    "T-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "trainer",
    "bag",
    "ankle boot",
)


@dataclass(frozen=True)
class Digits:
    """The embedded images. Images are float32 in [0, 1], labels are int64 in 0..9.

    Shapes: `train_images` (5000, 1, 28, 28), `train_labels` (5000,), `test_images` (2000, 1, 28, 28),
    `test_labels` (2000,), `fashion_images` (1000, 1, 28, 28), `letters_images` (1000, 1, 28, 28),
    `fashion_labels` (1000,), the places in `FASHION_NAMES`, `letters_labels` (1000,), from A = 0.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    fashion_images: Tensor
    letters_images: Tensor
    fashion_labels: Tensor
    letters_labels: Tensor


def digits() -> Digits:
    """Return 7,000 MNIST digits, and as outliers 1,000 Fashion-MNIST images and 1,000 letters.

    The set is real, and small enough to come with the package. It has 500 training and 200 test images of
    each digit, 100 images of each Fashion-MNIST class, and 38 or 39 of each letter. The images of a class are
    chosen at random, and all are in random order. The letters are upper-case samples of the public A–Z
    handwritten set. They are not EMNIST letters, so results on them do not compare with the paper's EMNIST
    rows.

    >>> data = digits()
    >>> data.train_images.shape, data.test_images.shape
    (torch.Size([5000, 1, 28, 28]), torch.Size([2000, 1, 28, 28]))
    >>> data.test_labels.bincount()
    tensor([200, 200, 200, 200, 200, 200, 200, 200, 200, 200])
    """
    mnist, fashion, letters = (
        _read_tensors(name) for name in ("mnist.npz", "fashion_mnist.npz", "letters.npz")
    )
    return Digits(
        train_images=scale_pixels(mnist["train_images"][:, None]),
        train_labels=mnist["train_labels"].long(),
        test_images=scale_pixels(mnist["test_images"][:, None]),
        test_labels=mnist["test_labels"].long(),
        fashion_images=scale_pixels(fashion["images"][:, None]),
        letters_images=scale_pixels(letters["images"][:, None]),
        fashion_labels=fashion["labels"].long(),
        letters_labels=letters["labels"].long() - 1,
    )


def digits_lenet() -> LeNet:
    """Return the paper's LeNet as trained on the 5,000 embedded digits, in eval mode.

    It maps images (n, 1, 28, 28) in [0, 1] to logits (n, 10). `scripts/make_embedded.py` trained it with
    cross-entropy. Its weights were rounded to float16 and are float32 here. Its accuracy on the 2,000
    embedded test digits is in `embedded/embedded.json`.

    >>> data = digits()
    >>> with torch.no_grad():
    ...     labels = digits_lenet()(data.test_images[:100]).argmax(dim=1)
    >>> (labels == data.test_labels[:100]).sum() >= 95
    tensor(True)
    """
    with torch.device("meta"):  # draws no weights, so the caller's random state does not change
        network = LeNet()
    weights = {name: weight.float() for name, weight in load(read_embedded("lenet.safetensors")).items()}
    network.load_state_dict(weights, assign=True)
    return network.eval()


def validation_split(
    images: Tensor, labels: Tensor, n: int, seed: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Split images and labels at random into n validation points and the other points, for testing.

    The paper takes its validation set from the test set in this way, with a new seed in each trial.

    Args:
        images: (N, ...).
        labels: (N,).
        n: the number of validation points.
        seed: determines the split.

    Returns:
        The validation points, ((n, ...), (n,)), and the test points, ((N − n, ...), (N − n,)).

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


def _read_tensors(name: str) -> dict[str, Tensor]:
    with np.load(io.BytesIO(read_embedded(name)), allow_pickle=False) as arrays:
        return {key: torch.from_numpy(array) for key, array in arrays.items()}
