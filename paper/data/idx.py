"""Read IDX files, the format of MNIST, Fashion-MNIST and EMNIST, gzipped or not."""

import gzip
import math
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bitbayes.errors import FileError
from paper.data.files import damage_as_file_error


def read_idx(path: Path) -> np.ndarray:
    """Return the uint8 array in an IDX file.

    The file holds two zero bytes, the type 8 (uint8), the rank r, r big-endian sizes, and the entries.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "labels-idx1-ubyte"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    ...     read_idx(path)
    array([7, 2, 1], dtype=uint8)
    """
    with damage_as_file_error(path, "IDX file"), _open_unpacked(path) as file:
        start = file.read(4)
        if len(start) < 4 or start[:3] != b"\x00\x00\x08":
            raise FileError(f"{path} is no IDX file of bytes: it begins with {start!r}")
        rank = start[3]
        sizes = file.read(4 * rank)
        if len(sizes) < 4 * rank:
            raise FileError(
                f"{path} is cut short: {4 + len(sizes)} bytes do not even hold its {rank} sizes: get the "
                "file again"
            )
        shape = struct.unpack(f">{rank}I", sizes)
        entries = _read_at_most(file, math.prod(shape) + 1)  # a small gzip file may unpack to terabytes
        if len(entries) != math.prod(shape):
            found = f"{len(entries):,}" if len(entries) < math.prod(shape) else "more"
            raise FileError(
                f"{path} says it holds {math.prod(shape):,} entries, but has {found}: get the file again"
            )
        return np.frombuffer(entries, dtype=np.uint8).reshape(shape).copy()


def _open_unpacked(path: Path) -> BinaryIO | gzip.GzipFile:
    """Open a file that may be gzipped, whether or not its name says so."""
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if zipped else path.open("rb")


def _read_at_most(file: BinaryIO | gzip.GzipFile, size: int) -> bytes:
    """Read `size` bytes, or all that are left. A size that is not true takes no memory."""
    parts = []
    while size and (part := file.read(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
