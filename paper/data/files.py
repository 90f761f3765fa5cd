"""Turn what damaged files raise into a `FileError`."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

from bitbayes.errors import FileError


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
