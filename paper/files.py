"""Make folders and write files. A failure or Ctrl-C leaves the old file as it was."""

import os
from pathlib import Path

from bitbayes.errors import FileError


def make_folder(folder: Path) -> None:
    """Make the folder and those above it, if they do not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error.strerror}; choose another") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write the file beside its place, and then put it there."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; choose another folder") from error
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))
