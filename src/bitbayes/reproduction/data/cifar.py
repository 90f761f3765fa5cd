"""CIFAR's python batches, in a folder or still in their tar.gz.

The batches are pickles, and a pickle can run any code while it is read: the reader here knows numpy's
arrays and nothing else, so that a file which asks for more is refused.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bitbayes.errors import FileError
from bitbayes.reproduction.data.checksums import verified

FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVES = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}
BATCHES = {
    ("cifar10", "train"): tuple(f"data_batch_{i}" for i in range(1, 6)),
    ("cifar10", "test"): ("test_batch",),
    ("cifar100", "train"): ("train",),
    ("cifar100", "test"): ("test",),
}
LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}


def read_cifar(name: str, split: str, source: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) of CIFAR-10 or CIFAR-100, in official order.

    `source`: the folder of batches, or the tar.gz.
    """
    images, labels = [], []
    for where, content in _contents(name, split, source):
        batch = _unpickled(content, where)
        try:
            images.append(np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32))
            labels.append(np.asarray(batch[LABELS[name]], dtype=np.int64))
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{where} is no batch of {name}: {error!r}") from error
    return np.concatenate(images), np.concatenate(labels)


def _contents(name: str, split: str, source: Path) -> Iterator[tuple[str, bytes]]:
    """Where each batch lies, and its bytes."""
    if source.is_dir():
        for batch in BATCHES[name, split]:
            path = source / batch
            if not path.is_file():
                raise FileError(f"{source} lacks the file {batch!r}: unpack the archive again")
            yield str(path), verified(path, name).read_bytes()
        return
    verified(source, name)
    try:
        with tarfile.open(source) as archive:
            for batch in BATCHES[name, split]:
                file = archive.extractfile(f"{FOLDERS[name]}/{batch}")
                if file is None:
                    raise KeyError(batch)
                yield f"{source}/{batch}", file.read()
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise FileError(f"{source} is no whole archive of {name}: {error}") from error


class _ArraysOnly(pickle.Unpickler):
    """Refuses everything but what a pickled numpy array is made of."""

    # Python 2's pickles name numpy.core, those of numpy 2 name numpy._core; both exist as _core today.
    KNOWN = frozenset(
        {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
        | {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a batch of images never needs")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _unpickled(content: bytes, where: str) -> dict[str, Any]:
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise FileError(f"{where} cannot be read: {error}") from error
    if not isinstance(batch, dict):
        raise FileError(f"{where} holds a {type(batch).__name__}, where a CIFAR batch holds a dictionary")
    return batch
