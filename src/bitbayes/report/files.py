"""Whether a file can be written, and writing it."""

from __future__ import annotations

import os
from pathlib import Path

from bitbayes.errors import FileError
from bitbayes.writing import whole


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
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
