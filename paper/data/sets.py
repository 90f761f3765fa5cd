"""Find and read the files of the paper's data sets. Nothing is downloaded."""

import os
from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitbayes.errors import FileError, MissingFileError, one_of
from paper.data.checksums import verify_checksum
from paper.data.cifar import ARCHIVE_NAMES, FOLDER_NAMES, read_cifar
from paper.data.folders import read_folder
from paper.data.idx import read_idx
from paper.data.packed import find_packed, read_packed
from paper.data.svhn import read_svhn

SPLITS = ("train", "test")
# The page of each set's official files, and which files to get there.
DOWNLOAD_PAGES = {
    "mnist": "yann.lecun.com/exdb/mnist: train-images-idx3-ubyte.gz and its three companions",
    "fashion_mnist": "github.com/zalandoresearch/fashion-mnist: train-images-idx3-ubyte.gz and companions",
    "emnist": "www.nist.gov/itl/products-and-services/emnist-dataset: gzip.zip, unpacked",
    "cifar10": "www.cs.toronto.edu/~kriz/cifar.html: cifar-10-python.tar.gz",
    "cifar100": "www.cs.toronto.edu/~kriz/cifar.html: cifar-100-python.tar.gz",
    "svhn": "ufldl.stanford.edu/housenumbers: train_32x32.mat and test_32x32.mat",
    "lsun": "www.yf.io/p/lsun: the validation images, exported as image files",
    "letters": "no official page: a packed substitute for EMNIST letters; use 'emnist' for the real ones",
}
# Folders under the root that may hold a set: the root itself, torchvision's folder, and the set's own name.
SUBFOLDERS = {
    "mnist": (".", "MNIST/raw", "MNIST", "mnist"),
    "fashion_mnist": ("FashionMNIST/raw", "FashionMNIST", "fashion_mnist", "fashion-mnist"),
    "emnist": (".", "EMNIST/raw", "EMNIST", "emnist", "gzip"),
    "cifar10": (".", "cifar10"),
    "cifar100": (".", "cifar100"),
    "svhn": (".", "svhn", "SVHN"),
    "lsun": ("lsun", "LSUN"),
    "letters": (),
}
DATA_SETS = tuple(DOWNLOAD_PAGES)

Arrays = tuple[np.ndarray, np.ndarray]


def load(name: str, split: str, root: str | PathLike[str]) -> tuple[Tensor, Tensor]:
    """Return the images (n, c, h, w) in uint8 and the labels (n,) in int64 of a data set.

    The official files may lie in `root` as downloaded, or in torchvision's folders. IDX files may be gzipped,
    and CIFAR's python batches may still be in their tar.gz. SVHN is read from its .mat files, and LSUN from
    a folder of images. Packed sets are read too. Official files are checked against their known checksums.

    `scale_pixels` converts the images to floats in [0, 1].

    Args:
        name: "mnist", "fashion_mnist", "emnist" (letters, where 0 is A), "letters" (a packed substitute for
            EMNIST letters), "cifar10", "cifar100", "svhn" or "lsun" (32 × 32, "test" only).
        split: "train" or "test".
        root: the folder that holds the files.

    >>> load("mnist", "test", "/nowhere")
    Traceback (most recent call last):
    ...
    bitbayes.errors.MissingFileError: no test split of 'mnist' under /nowhere: get it from
    yann.lecun.com/exdb/mnist: train-images-idx3-ubyte.gz and its three companions, and put it into /nowhere
    or /nowhere/MNIST/raw
    """
    one_of("name", name, DATA_SETS)
    one_of("split", split, SPLITS)
    folder = Path(root)
    read = _find_reader(name, split, folder) if os.path.isdir(folder) else None  # False for a name too long
    if read is None:
        places = [str(folder / place) for place in SUBFOLDERS[name]][:2]
        where = f", and put it into {' or '.join(places)}" if places else ""
        raise MissingFileError(
            f"no {split} split of {name!r} under {folder}: get it from {DOWNLOAD_PAGES[name]}{where}"
        )
    images, labels = read()
    if images.ndim != 4 or labels.shape != images.shape[:1] or not len(images):
        raise FileError(
            f"{name}, {split}: images of shape {images.shape} with labels of shape {labels.shape} under "
            f"{folder}: get the files again"
        )
    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels)


def _find_reader(name: str, split: str, root: Path) -> Callable[[], Arrays] | None:
    """Return a function that reads the set from the first folder that has it, or None."""
    packed = find_packed(name, split, root)
    if packed:
        return partial(read_packed, name, split, packed)
    for place in SUBFOLDERS[name]:
        read = _find_official_reader(name, split, root / place)
        if read is not None:
            return read
    return None


def _find_official_reader(name: str, split: str, folder: Path) -> Callable[[], Arrays] | None:
    if name in FOLDER_NAMES:
        sources = [folder / FOLDER_NAMES[name], folder / ARCHIVE_NAMES[name]]
        found = next((source for source in sources if source.exists()), None)
        return partial(read_cifar, name, split, found) if found else None
    if name == "svhn":
        path = folder / f"{split}_32x32.mat"
        return partial(read_svhn, path) if path.is_file() else None
    if name == "lsun":
        return partial(read_folder, folder) if split == "test" and folder.is_dir() else None
    start = f"emnist-letters-{split}" if name == "emnist" else {"train": "train", "test": "t10k"}[split]
    images, labels = (
        _find_idx_file(folder, f"{start}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")
    )
    return partial(_read_idx_pair, name, images, labels) if images and labels else None


def _find_idx_file(folder: Path, name: str) -> Path | None:
    """Return the file, gzipped or not. Some copies have a dot in place of the dash before `idx`."""
    dotted = name.replace("-idx", ".idx")
    names = (name, f"{name}.gz", dotted, f"{dotted}.gz")
    return next((folder / each for each in names if (folder / each).is_file()), None)


def _read_idx_pair(name: str, images: Path, labels: Path) -> Arrays:
    pixels, numbers = (read_idx(verify_checksum(path, name)) for path in (images, labels))
    if pixels.ndim != 3 or numbers.ndim != 1:
        raise FileError(f"{images} and {labels} hold arrays of {pixels.ndim} and {numbers.ndim} dimensions")
    if name == "emnist":  # which stores images transposed, and numbers the letters from 1
        pixels, numbers = pixels.transpose(0, 2, 1), numbers - 1
    return pixels[:, None], numbers.astype(np.int64)
