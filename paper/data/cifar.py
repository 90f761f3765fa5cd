"""Read CIFAR's python batches, from a folder or from their tar.gz.

The batches are pickles, and a pickle can run any code while it is read. The reader here accepts numpy arrays
and nothing else.
"""

import codecs
import io
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bitbayes.errors import FileError
from paper.data.checksums import verify_checksum
from paper.data.files import damage_as_file_error

FOLDER_NAMES = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVE_NAMES = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}
BATCH_NAMES = {
    ("cifar10", "train"): tuple(f"data_batch_{i}" for i in range(1, 6)),
    ("cifar10", "test"): ("test_batch",),
    ("cifar100", "train"): ("train",),
    ("cifar100", "test"): ("test",),
}
LABEL_KEYS = {"cifar10": "labels", "cifar100": "fine_labels"}


def read_cifar(name: str, split: str, source: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, 3, 32, 32) in uint8 and labels (n,) of CIFAR-10 or CIFAR-100, in their official order.

    Args:
        name: "cifar10" or "cifar100".
        split: "train" or "test".
        source: the folder of batches, or the tar.gz.
    """
    images, labels = [], []
    for where, content in _read_batches(name, split, source):
        with damage_as_file_error(where, f"batch of {name}"):
            batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
            images.append(np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32))
            labels.append(np.asarray(batch[LABEL_KEYS[name]], dtype=np.int64))
    return np.concatenate(images), np.concatenate(labels)


def _read_batches(name: str, split: str, source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the place of each batch, for error messages, and its bytes."""
    if source.is_dir():
        for batch in BATCH_NAMES[name, split]:
            path = source / batch
            if not path.is_file():
                raise FileError(f"{source} lacks the file {batch!r}: unpack the archive again")
            yield str(path), verify_checksum(path, name).read_bytes()
        return
    verify_checksum(source, name)
    with damage_as_file_error(source, f"whole archive of {name}"), tarfile.open(source) as archive:
        for batch in BATCH_NAMES[name, split]:
            file = archive.extractfile(f"{FOLDER_NAMES[name]}/{batch}")
            if file is None:
                raise KeyError(batch)
            yield f"{source}/{batch}", file.read()


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that refuses everything but the parts of a numpy array. It imports nothing."""

    # Pickles of numpy 1 name numpy.core, those of numpy 2 name numpy._core. Not every numpy has both.
    ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,
        **dict.fromkeys(
            [(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")],
            np.empty(0).__reduce__()[0],  # the function that every pickled array is made with
        ),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a batch of images never needs")
        return self.ALLOWED[module, name]
