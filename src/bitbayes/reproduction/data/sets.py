"""The paper's data sets, read from the files a user has. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitbayes.errors import FileError, MissingFileError, one_of
from bitbayes.reproduction.data.checksums import verified
from bitbayes.reproduction.data.cifar import ARCHIVES, FOLDERS, read_cifar
from bitbayes.reproduction.data.folders import read_folder
from bitbayes.reproduction.data.idx import read_idx
from bitbayes.reproduction.data.packed import find_packed, read_packed
from bitbayes.reproduction.data.svhn import read_svhn

SPLITS = ("train", "test")
# Where the official files come from, and which to get.
SOURCES = {
    "mnist": "yann.lecun.com/exdb/mnist: train-images-idx3-ubyte.gz and its three companions",
    "fashion_mnist": "github.com/zalandoresearch/fashion-mnist: train-images-idx3-ubyte.gz and companions",
    "emnist": "www.nist.gov/itl/products-and-services/emnist-dataset: gzip.zip, unpacked",
    "cifar10": "www.cs.toronto.edu/~kriz/cifar.html: cifar-10-python.tar.gz",
    "cifar100": "www.cs.toronto.edu/~kriz/cifar.html: cifar-100-python.tar.gz",
    "svhn": "ufldl.stanford.edu/housenumbers: train_32x32.mat and test_32x32.mat",
    "lsun": "www.yf.io/p/lsun: the validation images, exported as image files",
    "letters": "no official page: a packed substitute for EMNIST letters; use 'emnist' for the real ones",
}
# Folders under the root in which a set is looked for: the root itself, torchvision's, and the set's own name.
PLACES = {
    "mnist": (".", "MNIST/raw", "MNIST", "mnist"),
    "fashion_mnist": ("FashionMNIST/raw", "FashionMNIST", "fashion_mnist", "fashion-mnist"),
    "emnist": (".", "EMNIST/raw", "EMNIST", "emnist", "gzip"),
    "cifar10": (".", "cifar10"),
    "cifar100": (".", "cifar100"),
    "svhn": (".", "svhn", "SVHN"),
    "lsun": ("lsun", "LSUN"),
    "letters": (),
}
NAMES = tuple(SOURCES)

Arrays = tuple[np.ndarray, np.ndarray]


def load(name: str, split: str, root: str | PathLike[str]) -> tuple[Tensor, Tensor]:
    """Return the images (n, c, h, w) in uint8 and the labels (n,) in int64 of a data set a user has.

    Looks under `root` for the official files, as they are downloaded (IDX, gzipped or not; CIFAR's python
    batches or their tar.gz; SVHN's .mat; LSUN as a folder of images), in torchvision's folder layout, and for
    packed sets. Official files are checked against their known checksums.

    Args:
        name: "mnist", "fashion_mnist", "emnist" (letters, 0 is A), "letters" (a packed substitute for them),
            "cifar10", "cifar100", "svhn" or "lsun" (32 × 32, "test" only).
        split: "train" or "test".
        root: the folder that holds them.

    >>> load("mnist", "test", "/nowhere")
    Traceback (most recent call last):
    ...
    bitbayes.errors.MissingFileError: no test split of 'mnist' under /nowhere: get it from
    yann.lecun.com/exdb/mnist: train-images-idx3-ubyte.gz and its three companions, and put it into /nowhere
    or /nowhere/MNIST/raw
    """
    one_of("name", name, NAMES)
    one_of("split", split, SPLITS)
    folder = Path(root)
    read = _find(name, split, folder)
    if read is None:
        places = [str(folder / place) for place in PLACES[name]][:2]
        where = f", and put it into {' or '.join(places)}" if places else ""
        raise MissingFileError(
            f"no {split} split of {name!r} under {folder}: get it from {SOURCES[name]}{where}"
        )
    images, labels = read()
    if len(images) != len(labels) or not len(images):
        raise FileError(f"{name}, {split}: {len(images)} images with {len(labels)} labels under {folder}")
    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels)


def as_images(pixels: Tensor) -> Tensor:
    """Pixels 0..255 (uint8) as float32 in [0, 1].

    >>> as_images(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    return pixels.float() / 255


def _find(name: str, split: str, root: Path) -> Callable[[], Arrays] | None:
    """What reads the set, from the first place that has it."""
    packed = find_packed(name, split, root)
    if packed:
        return partial(read_packed, name, split, packed)
    for place in PLACES[name]:
        read = _official(name, split, root / place)
        if read is not None:
            return read
    return None


def _official(name: str, split: str, folder: Path) -> Callable[[], Arrays] | None:
    if name in FOLDERS:
        sources = [folder / FOLDERS[name], folder / ARCHIVES[name]]
        found = next((source for source in sources if source.exists()), None)
        return partial(read_cifar, name, split, found) if found else None
    if name == "svhn":
        path = folder / f"{split}_32x32.mat"
        return partial(read_svhn, path) if path.is_file() else None
    if name == "lsun":
        return partial(read_folder, folder) if split == "test" and folder.is_dir() else None
    start = f"emnist-letters-{split}" if name == "emnist" else {"train": "train", "test": "t10k"}[split]
    files = [_either(folder, f"{start}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
    images, labels = files
    return partial(_read_idx_pair, name, images, labels) if images and labels else None


def _either(folder: Path, name: str) -> Path | None:
    """The file, gzipped or not; also with a dot where the name has its second-to-last dash."""
    dotted = name.replace("-idx", ".idx")
    names = (name, f"{name}.gz", dotted, f"{dotted}.gz")
    return next((folder / each for each in names if (folder / each).is_file()), None)


def _read_idx_pair(name: str, images: Path, labels: Path) -> Arrays:
    pixels, numbers = (read_idx(verified(path, name)) for path in (images, labels))
    if pixels.ndim != 3 or numbers.ndim != 1:
        raise FileError(f"{images} and {labels} hold arrays of {pixels.ndim} and {numbers.ndim} dimensions")
    if name == "emnist":  # which stores images turned over, and letters from 1
        pixels, numbers = pixels.transpose(0, 2, 1), numbers - 1
    return pixels[:, None], numbers.astype(np.int64)
