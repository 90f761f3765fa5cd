"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bitbayes.errors import FileError


def check_writable(path: Path) -> None:
    """Raise if no file can be written at `path`: worth knowing before an hour of work, not after it."""
    if path.is_dir():
        raise FileError(f"{path} is a directory: give the name of a file")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"cannot write {path}: the directory {path.parent} is not writable")


def write_atomically(path: Path, text: str) -> None:
    """Write `text` beside `path` first and rename it, so that a crash leaves the old file as it was."""
    check_writable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())  # mkstemp's own mode is for the owner's eyes only
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
