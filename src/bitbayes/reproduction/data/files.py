"""Read the files that come with the package, and turn what damaged files raise into a `FileError`."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from bitbayes.errors import FileError

EMBEDDED_FOLDER = Path(__file__).parent / "embedded"


@contextmanager
def damage_as_file_error(path: str | PathLike[str], kind: str) -> Iterator[None]:
    """Turn whatever reading the file raises into a `FileError`: "`path` is no `kind` that can be read".

    Damaged files raise errors of many kinds: of zlib, of Pillow, of Python's tokenizer (numpy's headers).

    >>> with damage_as_file_error("a.gz", "IDX file"):
    ...     _ = [][3]
    Traceback (most recent call last):
    ...
    bitbayes.errors.FileError: a.gz is no IDX file that can be read (IndexError: list index out of range):
    get the file again
    """
    try:
        yield
    except FileError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise FileError(f"{path} is no {kind} that can be read ({reason}): get the file again") from error


def read_embedded(name: str) -> bytes:
    """Return the bytes of an embedded file. Raise unless its SHA-256 is the one in `embedded.json`.

    A safetensors file has no checksum of its own, so a flipped bit in the weights would go unnoticed.

    >>> len(read_embedded("lenet.safetensors")) > 6_000_000
    True
    >>> read_embedded("cifar10.npz")
    Traceback (most recent call last):
    ...
    bitbayes.errors.FileError: the embedded file 'cifar10.npz' cannot be read (...): reinstall bitbayes
    """
    try:
        expected = json.loads((EMBEDDED_FOLDER / "embedded.json").read_text(encoding="utf-8"))["sha256"][name]
        content = (EMBEDDED_FOLDER / name).read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FileError(
            f"the embedded file {name!r} cannot be read ({reason}): reinstall bitbayes"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise FileError(
            f"the embedded file {name!r} is damaged: its SHA-256 is {found}, "
            f"but should be {expected}: reinstall bitbayes"
        )
    return content
