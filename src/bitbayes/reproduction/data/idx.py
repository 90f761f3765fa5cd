"""Read IDX files, the format of MNIST, Fashion-MNIST and EMNIST, gzipped or not."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from bitbayes.errors import FileError


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
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":  # the first two bytes of a gzip file, whose name may lack .gz
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise FileError(f"{path} cannot be unpacked ({error}): get the file again") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise FileError(f"{path} is no IDX file of bytes: it begins with {content[:4]!r}")
    rank = content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise FileError(f"{path} is cut short: {len(content)} bytes do not even hold its {rank} sizes")
    shape = struct.unpack(f">{rank}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise FileError(
            f"{path} says it holds {math.prod(shape):,} entries, but has {len(content) - start:,}: "
            "get the file again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()
